"""Outputs of every allocator and way to preempt, token for token against the plain forward."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.common import Check
from benchmarks.serve._contiguous import Reservation, contiguous_scheduler
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import Transformer, build
from steelyard.serve import SamplingParams, SchedulerConfig
from steelyard.serve.engine import LLM

__all__ = ["RESERVATIONS", "equality_checks", "small_model"]

RESERVATIONS: dict[str, Reservation] = {
    "contiguous-max": "max",
    "contiguous-pow2": "pow2",
    "contiguous-oracle": "oracle",
}
"""Reservation of each contiguous allocator by its name in the paper's figures."""


def small_model(
    vocab_size: int = 512, width: int = 64, layers: int = 2, longest: int = 512
) -> Transformer:
    """Build a small decoder with weights wide enough for varied greedy outputs."""
    shape = Architecture(
        name="small",
        hidden_size=width,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=width // 4,
        intermediate_size=2 * width,
        vocab_size=vocab_size,
        max_positions=longest,
        tied_embeddings=False,
    )
    model = build(shape, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)
    return model.eval()


_VARIANTS: tuple[tuple[str, bool, dict[str, object]], ...] = (
    ("paged", False, {}),
    ("chunks of 5", False, {"token_budget": 8, "max_num_seqs": 3}),
    ("contiguous-max", False, {"num_blocks": 64}),
    ("contiguous-oracle", True, {"num_blocks": 64}),
    ("recomputed", False, {"num_blocks": 14, "prefix_caching": False}),
    ("swapped", False, {"num_blocks": 14, "preemption": "swap", "host_blocks": 48}),
    (
        "swapped groups, ahead",
        True,
        {"num_blocks": 14, "preemption": "swap", "host_blocks": 48, "allocator": "block-group"},
    ),
    ("ahead", True, {"token_budget": 24}),
    ("recomputed, ahead", True, {"num_blocks": 15, "policy": "vtc", "update_every": 4}),
    (
        "priorities swapped",
        False,
        {
            "num_blocks": 16,
            "preemption": "swap",
            "host_blocks": 48,
            "policy": "priority",
            "update_every": 5,
        },
    ),
)


def equality_checks(quick: bool) -> list[Check]:
    """Compare 200 random requests with the plain forward, token for token."""
    model, generator = small_model(longest=128), np.random.default_rng(2)
    per_variant, equal, total, beams = 20, 0, 0, 0
    common = generator.integers(0, 512, 24).tolist()
    for name, ahead, changes in _VARIANTS:
        limits = {
            "num_blocks": 64,
            "block_size": 8,
            "token_budget": 64,
            "max_num_seqs": 8,
            "max_model_len": 96,
            **changes,
        }
        llm = LLM(model, SchedulerConfig(**limits), asynchronous=ahead)  # pyright: ignore[reportArgumentType]
        if name in RESERVATIONS:
            llm.driver.scheduler = contiguous_scheduler(llm.config, RESERVATIONS[name])
        prompts = [
            common * (row % 4 == 0) + generator.integers(0, 512, generator.integers(1, 40)).tolist()
            for row in range(per_variant)
        ]
        counts = generator.integers(4, 24, per_variant).tolist()
        done = llm.generate(prompts, [SamplingParams(max_tokens=count) for count in counts])
        right = sum(
            _is_greedy(model, prompt, item.tokens, count)
            for item, prompt, count in zip(done, prompts, counts, strict=True)
        )
        stats = llm.stats()
        print(
            f"{name:22s} {right}/{per_variant} equal; {stats.preemptions} preemptions, "
            f"{stats.swaps} swaps"
        )
        equal, total = equal + right, total + per_variant
        llm.close()
    llm = LLM(
        model,
        SchedulerConfig(
            num_blocks=64, block_size=8, token_budget=64, max_num_seqs=8, max_model_len=96
        ),
    )
    for _ in range(4 if quick else 20):
        prompt = generator.integers(0, 512, 12).tolist()
        got = llm.generate([prompt], SamplingParams(max_tokens=10, n=3, beam_width=4))[0].outputs
        beams += [item.tokens for item in got] == _beam_search(model, prompt, 4, 10)[:3]
    return [
        Check(f"3 requests equal to the plain forward, of {total} (real)", equal, total, "higher"),
        Check(
            "3 share of beam searches equal to a plain one (real)",
            beams / (4 if quick else 20),
            1.0,
            "higher",
        ),
    ]


@torch.inference_mode()
def _is_greedy(model: Transformer, prompt: list[int], tokens: list[int], count: int) -> bool:
    """Whether each token of an output is the likeliest, by one forward over prompt and output."""
    best = model(torch.tensor([prompt + tokens]))[0, len(prompt) - 1 : -1].argmax(-1)
    return len(tokens) == count and best.tolist() == tokens


@torch.inference_mode()
def _beam_search(model: Transformer, prompt: list[int], width: int, count: int) -> list[list[int]]:
    """Search with a full forward for every beam and token; nothing ends early."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(count):
        logprobs: Tensor = (
            model(torch.tensor([prompt + tokens for _, tokens in live]))[:, -1]
            .float()
            .log_softmax(-1)
        )
        found = [
            (total + float(row[token]), [*tokens, token])
            for (total, tokens), row in zip(live, logprobs, strict=True)
            for token in row.topk(2 * width).indices.tolist()
        ]
        live = sorted(found, key=lambda item: -item[0])[:width]
    return [tokens for _, tokens in live]
