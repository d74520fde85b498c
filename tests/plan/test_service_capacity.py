"""A recommended configuration starts on the engine and serves its longest request in its memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import build
from steelyard.serve.build import make_engine
from steelyard.serve.options import EngineOptions
from steelyard.serve.scheduling.params import SamplingParams

CASES = Path(__file__).with_name("capacity_cases.py")


def run_cases(count, seed):
    done = subprocess.run(
        [sys.executable, str(CASES), str(count), str(seed)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == count, done.stderr
    bad = [item for item in found if item["state"] not in ("held", "refused")]
    assert not bad, f"{bad}\n{done.stderr}"
    return [item for item in found if item["state"] == "held"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's peak of memory")
def test_recommended_engines_start_and_fit():
    assert run_cases(2, 2)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's peak of memory")
def test_many_recommended_engines_start_and_fit():
    held = run_cases(150, 1000)
    assert len(held) >= 75
    # The reserve is for what nobody counts, such as pages of libraries: one in six of 383 engines
    # used some of it.
    assert sum(item["used_reserve"] for item in held) <= 0.25 * len(held)


def test_whole_prompts_beyond_the_budget_run_alone_with_equal_outputs(drawn_prompts):
    model, prompts = drawn_prompts
    outputs = []
    for whole in (False, True):
        options = EngineOptions(
            weights="fp32", whole_prompts=whole, token_budget=64, max_num_seqs=16, num_blocks=64
        )
        llm = make_engine(model, options)
        assert llm.config.num_blocks == 64
        found = llm.generate(prompts, SamplingParams(max_tokens=8))
        outputs.append([item.tokens for item in found])
    assert outputs[0] == outputs[1]


@pytest.fixture
def drawn_prompts():
    """A tiny model, prompts of more than 64 tokens, and short ones."""
    torch.set_num_threads(1)
    arch = Architecture(
        name="tiny", vocab_size=97, max_positions=256, hidden_size=64, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=16, intermediate_size=128,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    return build(arch, seed=1), [*draw.integers(0, 97, (5, 150)).tolist(), [1, 2, 3], [4]]
