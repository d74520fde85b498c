"""Models beyond the families of Hugging Face: norm schemes, positions, mixers, experts."""

import copy
import dataclasses
import json

import pytest
import torch
from tests.nn.wide_models import WIDE
from torch.nn import functional as F

from steelyard.catalog.parameters import count_parameters
from steelyard.errors import CatalogError, ConfigError, DataError
from steelyard.nn import checkpoint
from steelyard.nn.moe.losses import auxiliary_loss
from steelyard.nn.parts.noise import reseed
from steelyard.nn.transformer import build


def tokens_of(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=WIDE.values(), ids=list(WIDE))
def wide(request):
    return request.param


def split_of(arch) -> dict:
    return {"split": 7} if arch.multiway else {}


def test_parameter_count_is_the_catalogs(wide):
    model = build(wide)
    # The bias of a router is stored, but no optimizer moves it.
    biases = sum(item.numel() for name, item in model.named_buffers() if "router.bias" in name)
    assert sum(p.numel() for p in model.parameters()) + biases == count_parameters(wide).total


def test_a_few_steps_lower_the_loss_and_reach_every_parameter(wide):
    model, tokens = build(wide, seed=3), tokens_of(8, 20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, reached = [], set()
    for step in range(8):
        reseed(model, step)
        hidden = model(tokens[:, :-1], **split_of(wide))
        logits = hidden if wide.kind == "decoder" else model.head(hidden)
        per_token = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        optimizer.zero_grad()
        (per_token.mean() + auxiliary_loss(model, per_token)).backward()
        reached |= {
            name
            for name, p in model.named_parameters()
            if p.grad is not None and (p.grad != 0).any()
        }
        optimizer.step()
        losses.append(per_token.mean().item())
    assert losses[-1] < losses[0] - 0.15
    assert reached == {name for name, _ in model.named_parameters()}
    copy.deepcopy(model)  # averages of weights and peers of distillation need copies


@torch.no_grad()
def test_a_later_token_does_not_change_earlier_logits(wide):
    # Full experts drop tokens by their order over the whole batch, so nothing may be dropped here.
    arch = dataclasses.replace(wide, capacity_factor=0.0)
    model, tokens = build(arch).eval(), tokens_of(1, 16)
    changed = tokens.clone()
    changed[0, 11] = (changed[0, 11] + 1) % 97
    before, after = model(tokens, **split_of(wide)), model(changed, **split_of(wide))
    assert not torch.allclose(before[:, 11:], after[:, 11:])
    same = torch.allclose(before[:, :11], after[:, :11], atol=1e-5)
    assert same == (wide.kind == "decoder")


@torch.no_grad()
def test_saved_and_loaded_it_computes_the_same(wide, tmp_path):
    model, tokens = build(wide, seed=2).eval(), tokens_of(2, 12)
    checkpoint.save(model, tmp_path)
    loaded = checkpoint.load(tmp_path)
    assert loaded.architecture == wide
    assert torch.equal(loaded(tokens, **split_of(wide)), model(tokens, **split_of(wide)))


def test_a_folder_whose_weights_are_another_models_is_refused(tmp_path):
    checkpoint.save(build(WIDE["softmax"]), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architecture"]["num_experts"] = 8
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"experts.*config\.json asks for"):
        checkpoint.load(tmp_path, is_checked=True)


def test_two_runs_of_one_seed_draw_the_same_within_layers():
    arch = dataclasses.replace(WIDE["reinforce"], drop_path=0.4)
    tokens, results = tokens_of(4, 12), []
    for _ in range(2):
        model = build(arch, seed=5)
        model(tokens)
        reseed(model, 9)
        results.append(model(tokens))
    assert torch.equal(*results)
    reseed(model, 10)
    assert not torch.equal(model(tokens), results[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"deepnorm": True, "subln": True}, "deepnorm.*subln"),
        ({"subln": True, "post_norm": True}, "subln"),
        ({"deepnorm": True, "sandwich_norm": True}, "sandwich_norm"),
        ({"num_experts": 4, "moe_intermediate_size": 8}, "experts_per_token"),
        ({"router": "hash"}, "num_experts is 0"),
        ({"num_experts": 4, "router_bias": True}, "router_bias.*router is 'softmax'"),
        ({"num_experts": 4, "num_expert_groups": 3}, "must divide num_experts = 4"),
        ({"kv_lora_rank": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}, "num_kv_heads = 2"),
        (
            {
                "num_experts": 4,
                "moe_intermediate_size": 8,
                "experts_per_token": 2,
                "router": "sinkhorn",
            },
            r"lie in \[1, 1\]",
        ),
        (
            {"mixer": "dilated", "dilated_segments": (8,), "dilated_rates": (3,)},
            "divides",
        ),
        ({"mixer": "dilated"}, "one rate per segment"),
        ({"drop_path": 1.0}, "drop_path"),
        ({"position": "xpos", "head_dim": 7}, "odd head_dim"),
        ({"mixer": "retention", "position": "alibi"}, "mixer = 'retention'"),
        ({"kind": "encoder", "sliding_window": 4}, "windows"),
    ],
)
def test_contradictions_are_named(llama, change, words):
    with pytest.raises((ConfigError, CatalogError), match=words):
        build(dataclasses.replace(llama, **change))
