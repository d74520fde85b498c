"""Checks 2 and 3 of NanoFlow: schedules searched on A100 timings, and run on this machine."""

from dataclasses import replace
from statistics import median

import torch
from benchmarks.common import Check
from benchmarks.laws._shared import shared

from steelyard import catalog
from steelyard.plan.overlap import published_interference, search
from steelyard.plan.overlap.kernel_times import MeasuredKernels
from steelyard.plan.overlap.layers import ServedBatch, serving_layer
from steelyard.plan.overlap.processor import decoding_layer
from steelyard.plan.overlap.threads import measured_graph, profile, run_in_turn, run_schedule, tried

__all__ = ["planned_checks", "run_checks"]

_WORKLOADS = ((512, 512), (1024, 512), (512, 1024))
"""Prompt and output tokens of the paper's three workloads of constant length."""
_SHAPES = ((256, 64), (128, 512), (64, 1024), (32, 2048))
"""Sequences that decode, and tokens that each attends."""


def planned_checks() -> list[Check]:
    """Search on measured A100 kernels for Llama-2-70B on eight devices, 2,048 tokens."""
    kernels = MeasuredKernels.load(shared("gpu-kernel-timings"), "a100_sxm")
    arch = catalog.architecture_by_name("llama-2-70b")
    gains, losses = {}, {}
    for prompt, output in _WORKLOADS:
        batch = ServedBatch(tokens=2048, prompt_tokens=prompt, output_tokens=output)
        graph = serving_layer(arch, kernels, batch, tensor_parallel=8)
        found = search(graph, published_interference())
        name = f"{prompt}/{output}"
        gains[name], losses[name] = found.sequential_s / found.searched_s, 1 - found.split_gain
        print(
            f"70B on 8 A100, {name}: gain {gains[name]:.3f}, pieces without overlap "
            f"-{losses[name]:.1%} (published -13.2%), rewrites "
            f"{'taken' if len(found.graph.rewrites) < len(graph.rewrites) else 'left'}"
        )
    return [
        Check("2 least gain of three workloads on A100", min(gains.values()), 1.10, "higher"),
        Check("2 largest gain of three workloads on A100", max(gains.values()), 1.30, "lower"),
        Check("2 least loss without overlap", min(losses.values()), 0.05, "higher"),
        Check("2 largest loss without overlap", max(losses.values()), 0.20, "lower"),
    ]


def run_checks(quick: bool) -> list[Check]:
    """Measure pairs on two cores, search, and run schedule and operations in turn, alternating."""
    # A layer of 768 columns: its weights leave the cache to keys and values.
    arch = replace(
        catalog.architecture_by_name("llama-2-7b"),
        name="decoder of 768 columns",
        hidden_size=768,
        num_heads=12,
        num_kv_heads=12,
        head_dim=64,
        intermediate_size=2048,
    )
    errors, gains, free_gains = [], [], []
    for tokens, context in _SHAPES[1:3] if quick else _SHAPES:
        work = decoding_layer(
            arch,
            tokens=tokens,
            context=context,
            generator=torch.Generator().manual_seed(tokens),
        )
        graph = measured_graph(work, tokens=tokens, unit=tokens // 8, num_layers=2)
        table = profile(work, tokens=tokens // 2)
        found = tried(search(graph, table), graph, work)
        ran, turns = [], []
        for _ in range(5 if quick else 15):
            ran += run_schedule(found, work)
            turns += run_in_turn(graph, 2, work)
        errors.append(abs(found.iteration_s / median(ran) - 1))
        gains.append(median(turns) / median(ran))
        free_gains.append(found.sequential_s / found.searched_s)
        left = {name: points[0] for name, points in table.curves.items()}
        print(
            f"{tokens} x {context}: {'overlapped' if found.is_overlapped else 'in turn'}, "
            f"predicted {found.iteration_s:.3f} s, ran {median(ran):.3f} s, in turn "
            f"{median(turns):.3f} s; best schedule predicted {free_gains[-1]:.3f}x; a core each "
            f"leaves {left} (share, performance)"
        )
    return [
        Check("3 largest error of a predicted makespan", max(errors), 0.10, "lower"),
        Check("3 slowest, over one after the other", min(gains), 0.98, "higher"),
        Check("3 fastest, over one after the other", max(gains), 1.10, "higher"),
    ]
