"""The Triton kernel against gathered attention: compiled on a GPU, interpreted on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

QUERIES = np.array([1, 1, 7, 33])
CONTEXTS = np.array([5, 300, 7, 90])
SHAPES = [(4, 2, 16, 4), (8, 1, 32, 16), (3, 3, 16, 8), (6, 2, 64, 16)]


def gathered(query, keys, values, tables):
    """The slow obvious version, sequence by sequence."""
    parts, start = [], 0
    for row, (length, context) in enumerate(zip(QUERIES.tolist(), CONTEXTS.tolist(), strict=True)):
        slots = (
            tables[row].cpu()[:, None] * keys.shape[1] + torch.arange(keys.shape[1])
        ).flatten()[:context]
        k, v = (
            item.flatten(0, 1)[slots.to(item.device)].transpose(0, 1)[None]
            for item in (keys, values)
        )
        q = query[start : start + length].transpose(0, 1)[None]
        mask = torch.arange(context) <= torch.arange(context - length, context)[:, None]
        parts.append(
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.device), enable_gqa=True)[
                0
            ].transpose(0, 1)
        )
        start += length
    return torch.cat(parts)


def assert_kernel_equals(device, dtype, tolerance):
    from steelyard.serve.running.triton_attention import paged_attention, query_tiles

    generator = torch.Generator().manual_seed(0)
    for heads, kv_heads, width, block_size in SHAPES:
        needed = -(-CONTEXTS // block_size)
        keys, values = torch.randn(
            2, int(needed.sum()) + 5, block_size, kv_heads, width, generator=generator
        ).to(device, dtype)
        tables = torch.zeros(len(CONTEXTS), int(needed.max()), dtype=torch.int64)
        order = torch.randperm(len(keys), generator=generator).split([*needed.tolist(), 5])
        for row, blocks in enumerate(order[:-1]):
            tables[row, : len(blocks)] = blocks
        query = torch.randn(int(QUERIES.sum()), heads, width, generator=generator).to(device, dtype)
        expected = gathered(query.float(), keys.float(), values.float(), tables)
        for splits in (1, 4):
            out = torch.full_like(query, 7.0)
            tiles = query_tiles(QUERIES, CONTEXTS, heads // kv_heads, query.device)
            paged_attention(query, keys, values, tables.to(device), tiles, out, splits=splits)
            torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


def assert_engine_equals(device):
    """A model's greedy outputs with the kernel equal its plain forward's."""
    from steelyard.catalog.architecture import Architecture
    from steelyard.nn.transformer import build
    from steelyard.serve import SamplingParams, SchedulerConfig
    from steelyard.serve.engine import LLM
    from steelyard.serve.running import model_steps

    if device == "cpu":
        model_steps.gpu_kernel_fits = lambda pool: True
    shape = {
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
    }
    model = build(
        Architecture(name="tiny", vocab_size=97, max_positions=128, tied_embeddings=False, **shape),
        seed=1,
        device=device,
    ).eval()
    llm = LLM(
        model,
        SchedulerConfig(
            num_blocks=16, block_size=8, max_model_len=96, token_budget=16, max_num_seqs=4
        ),
    )
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 97, size).tolist() for size in (3, 25, 40)]
    runner = llm.runner
    runner._steps = model_steps.ModelSteps(model, runner.pool, compiled=False)
    for prompt, done in zip(
        prompts, llm.generate(prompts, SamplingParams(max_tokens=6)), strict=True
    ):
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(6):
                tokens.append(int(model(torch.tensor([tokens], device=device))[0, -1].argmax()))
        assert done.tokens == tokens[len(prompt) :]


@pytest.mark.gpu
def test_engine_on_a_gpu_equals_the_plain_forward():
    assert_engine_equals("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_kernel_equals_gathered_attention_on_a_gpu(dtype, tolerance):
    assert_kernel_equals("cuda", dtype, tolerance)


@pytest.mark.peers
def test_kernel_equals_gathered_attention_when_interpreted():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    assert (
        subprocess.run(
            [sys.executable, str(Path(__file__))], env=environment, check=False
        ).returncode
        == 0
    )


if __name__ == "__main__":
    assert_kernel_equals("cpu", torch.float32, 1e-5)
    assert_engine_equals("cpu")
