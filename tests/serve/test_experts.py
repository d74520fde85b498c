"""Experts and latent attention in the engine: company, room and number types."""

import dataclasses

import pytest
import torch
from tests.family_models import golden, write_folder
from tests.made_rates import made_calibration, made_rates
from tests.nn.wide_models import WIDE

from steelyard.catalog import architecture_by_name, store_calibration
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.errors import ConfigError
from steelyard.nn import checkpoint
from steelyard.nn.moe.separate import SeparateExperts
from steelyard.nn.traits import refuse_beyond_kernels
from steelyard.nn.transformer import build
from steelyard.serve import SamplingParams, SchedulerConfig
from steelyard.serve.build import make_engine
from steelyard.serve.engine import LLM
from steelyard.serve.options import EngineOptions
from steelyard.serve.running.pool import slot_bytes
from steelyard.serve.weight_choice import with_weights

GOLDEN = golden()
PROMPTS = [GOLDEN["prompt"][:size] for size in (1, 9, 26, 34, 40)]
COUNT = 10
ROOM = SchedulerConfig(
    num_blocks=64, block_size=4, token_budget=17, max_num_seqs=8, max_model_len=56
)


@pytest.fixture(scope="module", params=["qwen2_moe", "deepseek_v3"])
def served(request, tmp_path_factory):
    """A folder, and what the model alone says to each prompt."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("experts")
    write_folder(GOLDEN["families"][request.param], folder)
    return folder, [alone(checkpoint.load(folder), prompt) for prompt in PROMPTS]


@torch.no_grad()
def alone(model, prompt):
    tokens = list(prompt)
    for _ in range(COUNT):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def outputs(llm):
    done = llm.generate(PROMPTS, SamplingParams(max_tokens=COUNT))
    return [item.tokens for item in done]


@pytest.mark.parametrize(
    "changes",
    [
        {"token_budget": 512},
        {"num_blocks": 15},
        {"num_blocks": 15, "preemption": "swap", "host_blocks": 64, "swap_s_per_block": 1e-6}
        | {"prefill_s_per_token": 1e-3, "prefix_caching": False},
    ],
    ids=["roomy", "recompute", "swap"],
)
@pytest.mark.parametrize("compiled", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_tokens_are_those_of_the_model_alone(served, changes, compiled):
    folder, expected = served
    model = checkpoint.load(folder, dtype=None, keep_stored=compiled)
    llm = LLM(model, dataclasses.replace(ROOM, **changes), compiled=compiled)
    for _ in range(2):  # the second time meets known prefixes
        assert outputs(llm) == expected
    found = llm.stats()
    assert found.blocks_in_use == 0
    if "num_blocks" in changes:
        assert (found.swaps if "preemption" in changes else found.preemptions) > 0
    if not changes.get("num_blocks"):
        assert found.cached_prompt_tokens > 30
    llm.close()


@pytest.mark.parametrize(("weights", "most"), [("bf16", 0.03), ("int8", 0.06), ("int4", 0.5)])
def test_narrow_weights_change_logits_little(served, weights, most):
    folder, _ = served
    rows = {}
    for kind in ("fp32", weights):
        llm = make_engine(folder, EngineOptions(pool_bytes=2**20, weights=kind, speculate="off"))
        assert (llm.runner.kernel, llm.runner.kernel_note.split()[:3]) == (
            "numba",
            ["native", "kernels", "have"],
        )
        (done,) = llm.generate([PROMPTS[-1]], SamplingParams(max_tokens=1, logprobs=20))
        rows[kind] = dict(done.outputs[0].top_logprobs[0])
    shared = rows["fp32"].keys() & rows[weights].keys()
    exact, found = (torch.tensor([rows[kind][at] for at in shared]) for kind in rows)
    assert len(shared) >= 10
    assert 0 < (found - exact).norm() / exact.norm() < most


@pytest.mark.parametrize("compiled", [True, False])
def test_experts_with_a_capacity_take_every_visit(compiled):
    arch = dataclasses.replace(WIDE["softmax"], subln=False, capacity_factor=0.01)
    model = build(arch, seed=3).eval()
    free = build(dataclasses.replace(arch, capacity_factor=0.0), seed=3).eval()
    prompts = [[token % 67 for token in prompt] for prompt in PROMPTS]
    llm = LLM(model, ROOM, compiled=compiled)
    assert outputs(llm) == [alone(free, prompt) for prompt in prompts]


def test_experts_stay_in_their_files_until_they_are_packed(served):
    folder, _ = served
    model = checkpoint.load(folder, dtype=None, keep_stored=True)
    assert any(isinstance(item, SeparateExperts) for item in model.modules())
    assert not any(name.endswith(("experts.up", "experts.down")) for name in model.state_dict())


def test_latents_take_the_bytes_that_plans_count():
    arch = architecture_by_name("deepseek-v2-lite")
    assert slot_bytes(arch, torch.bfloat16) == kv_bytes_per_token(arch, 2) == 27 * 576 * 2


def test_what_is_not_there_is_refused_by_name(served):
    folder, _ = served
    model = checkpoint.load(folder)
    if model.architecture.kv_lora_rank:
        with pytest.raises(ConfigError, match=r"int8, but .* keeps latents"):
            LLM(model, ROOM, kv_dtype=torch.int8)
    with pytest.raises(ConfigError, match="cannot be quantized: it has experts"):
        refuse_beyond_kernels(model.architecture, "quantized")


def test_no_type_of_weights_is_forecast_from_rates_of_other_products(served, tmp_path, monkeypatch):
    folder, _ = served
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    store_calibration(made_calibration(made_rates()))
    options, choice, note = with_weights(EngineOptions(), folder)
    assert (options, choice) == (EngineOptions(), None)
    assert note.startswith("weights as stored: no rates of products forecast experts")
