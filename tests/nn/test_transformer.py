import dataclasses

import pytest
import torch
from torch.nn import functional as F

from steelyard.catalog.parameters import count_parameters
from steelyard.errors import ConfigError
from steelyard.nn.rotary import rotary_tables, rotate, spread
from steelyard.nn.transformer import build


def tokens_of(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_parameter_count_is_the_catalogs(arch):
    assert sum(p.numel() for p in build(arch).parameters()) == count_parameters(arch).total


def test_gradient_reaches_every_parameter_and_a_step_lowers_the_loss(arch):
    model, tokens = build(arch, seed=3), tokens_of(4, 20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
        assert all((p.grad != 0).any() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5


def cached_attend(arch, cache: dict):
    def attend(layer, queries, keys, values):
        """One token at a time: append to the layer's cache and attend to all of it."""
        seen = cache.setdefault(layer, ([], []))
        seen[0].append(keys)
        seen[1].append(values)
        group = queries.shape[-2] // keys.shape[-2]
        k = torch.stack(seen[0], dim=-3).repeat_interleave(group, dim=-2)
        v = torch.stack(seen[1], dim=-3).repeat_interleave(group, dim=-2)
        scores = torch.einsum("bhd,bthd->bht", queries, k) / queries.shape[-1] ** 0.5
        if arch.attention_softcap:
            scores = torch.tanh(scores / arch.attention_softcap) * arch.attention_softcap
        if window := arch.window_of(layer):
            scores[..., :-window] = -torch.inf
        return torch.einsum("bht,bthd->bhd", scores.softmax(-1), v)

    return attend


@torch.no_grad()
def test_run_with_a_cache_equals_forward(arch):
    model, tokens, cache = build(arch, seed=5), tokens_of(2, 11), {}
    expected = model(tokens)
    steps = [
        model.run(tokens[:, t], torch.full((2,), t), cached_attend(arch, cache)) for t in range(11)
    ]
    torch.testing.assert_close(
        model.head(torch.stack(steps, dim=1)), expected, rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
def test_grouped_heads_equal_repeated_heads(llama):
    grouped = build(llama, seed=2)
    repeated = build(dataclasses.replace(llama, num_kv_heads=6), seed=2)
    state = grouped.state_dict()
    for name, value in state.items():
        if name.endswith("qkv.weight"):
            q, k, v = value.split((48, 16, 16))
            state[name] = torch.cat(
                [
                    q,
                    *(
                        x.unflatten(0, (2, 8)).repeat_interleave(3, dim=0).flatten(0, 1)
                        for x in (k, v)
                    ),
                ]
            )
    repeated.load_state_dict(state)
    torch.testing.assert_close(
        repeated(tokens_of(2, 9)), grouped(tokens_of(2, 9)), rtol=1e-4, atol=1e-5
    )


def test_a_later_token_does_not_change_earlier_logits(llama):
    model, tokens = build(llama), tokens_of(1, 12)
    changed = tokens.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 97
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


def test_seed_fixes_the_weights_and_nothing_global_is_drawn(llama):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, same, other = build(llama, seed=7), build(llama, seed=7), build(llama, seed=8)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.embedding.weight, other.embedding.weight)
    state = one.state_dict()
    spread = (0.4 / llama.hidden_size) ** 0.5
    assert state["layers.0.qkv.weight"].std().item() == pytest.approx(spread, rel=0.1)
    assert state["layers.0.down.weight"].std().item() == pytest.approx(spread / 6**0.5, rel=0.1)


def test_rotation_depends_on_the_distance_only_and_its_gradient_is_exact():
    tables = rotary_tables(40, 8, 100.0)
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def turned(x, p):
        return rotate(x, *spread(tables[0][p : p + 1], tables[1][p : p + 1], torch.float64))

    near, far = (turned(q, 3) * turned(k, 1)).sum(), (turned(q, 33) * turned(k, 31)).sum()
    torch.testing.assert_close(near, far, rtol=1e-5, atol=1e-5)
    assert torch.autograd.gradcheck(lambda x: turned(x, 7), q.clone().requires_grad_())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_lora_rank": 16}, "latent attention"),
        ({"kind": "encoder-decoder"}, "encoder-decoder"),
        ({"num_token_types": 2, "pooler": True}, "num_token_types.*pooler"),
        ({"num_kv_heads": 4}, "multiple"),
    ],
)
def test_unsupported_traits_are_named(llama, change, words):
    with pytest.raises(ConfigError, match=words):
        build(dataclasses.replace(llama, **change))


def test_a_sequence_longer_than_the_positions_is_refused(llama):
    with pytest.raises(ConfigError, match=r"65 tokens.*max_positions = 64"):
        build(llama)(tokens_of(1, 65))
