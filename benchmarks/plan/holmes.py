"""Clusters of unlike networks: placement of ranks and stages by speed, against Holmes' numbers.

GPT of 3.6 billion parameters (30 layers of width 3,072, sequences of 2,048, 768 a step in
micro-batches of 4, two pipeline stages) on four nodes of eight A100: arXiv:2312.03549, table 1.
What the links reach is fitted to that table's three rows, and to nothing else; InfiniBand is taken
to reach 80 % of its 200 Gbit/s. All figures are simulated but the three rows.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
from benchmarks.common import Check
from scipy.optimize import brentq

from steelyard.cost.layout import Layout
from steelyard.plan.placement import ClusterPart, JoinedClusters, LayerWork, place, placements
from steelyard.plan.stages import proportional_layers, split_layers, timed_split

PAPER = ["71-holmes"]

_TFLOPS = {"infiniband": 197.0, "roce": 160.0, "ethernet": 122.0}
_SAMPLES_PER_S = {"infiniband": 99.23, "roce": 80.54, "ethernet": 61.32}
_GBIT = {"infiniband": 200.0, "roce": 200.0, "ethernet": 25.0}
_ASSUMED = 0.8
_NODES, _PER_NODE = 4, 8
_BATCH, _MICRO, _LAYERS, _WIDTH, _LENGTH = 768, 4, 30, 3072, 2048
_NVLINK = 300e9
_LAYOUT = Layout(data=16, pipeline=2)


def run(quick: bool) -> list[Check]:
    """Fit the links, place mixed clusters, and split stages."""
    layer_s, reached = _fitted()
    work = _work(_LAYOUT, layer_s)
    rates = {name: _samples_per_s(name, name, work, reached) for name in _TFLOPS}
    rates["infiniband + roce"] = _samples_per_s("infiniband", "roce", work, reached)
    rates["two of roce over ethernet"] = _samples_per_s("roce", "roce", work, reached, apart=True)
    for name, rate in rates.items():
        tflops = rate * _TFLOPS["infiniband"] / _SAMPLES_PER_S["infiniband"]
        known = f", measured {_SAMPLES_PER_S[name]}" if name in _SAMPLES_PER_S else " (simulated)"
        print(f"{name:28s} {rate:6.2f} samples/s{known}; {tflops:.0f} TFLOP/s per GPU")
    shares = {name: f"{rate / (_GBIT[name] / 8 * 1e9):.0%}" for name, rate in reached.items()}
    print(f"share of each link's rate that the fit finds: {shares}")
    mixed = rates["infiniband + roce"]
    apart = rates["two of roce over ethernet"] / rates["roce"]
    return [
        *_stages(quick),
        Check("3 mixed over InfiniBand's rate", mixed / rates["infiniband"], 1.0, "lower"),
        Check("3 mixed over RoCE's rate", mixed / rates["roce"], 1.0, "higher"),
        Check("3 two clusters over Ethernet, of RoCE's rate", apart, 0.85, "higher"),
        *_assignment(layer_s, reached),
    ]


def _work(layout: Layout, layer_s: float) -> LayerWork:
    """Return what a layer of the model does."""
    weights = 12 * _WIDTH**2
    return LayerWork(
        num_layers=_LAYERS,
        layer_s=layer_s,
        # Gradients in fp32 are scattered, and weights in 16 bits gathered.
        gradient_bytes=6.0 * weights,
        boundary_bytes=2.0 * _MICRO * _LENGTH * _WIDTH,
        micro_batches=_BATCH // (_MICRO * layout.data),
    )


def _machines(
    first: str, second: str, reached: dict[str, float], *, apart: bool = False
) -> JoinedClusters:
    """Return two halves of the nodes; equal ones are one network unless they stand apart."""
    is_one = first == second and not apart
    parts = tuple(
        ClusterPart(
            name=f"{name} {index}",
            nodes=_NODES if is_one else _NODES // 2,
            per_node=_PER_NODE,
            node_bytes_per_s=_NVLINK,
            network_bytes_per_s=reached[name],
        )
        for index, name in enumerate([first] if is_one else [first, second])
    )
    return JoinedClusters(parts=parts, between_bytes_per_s=reached["ethernet"])


def _samples_per_s(
    first: str, second: str, work: LayerWork, reached: dict[str, float], *, apart: bool = False
) -> float:
    """Return the rate of the best placement."""
    return _BATCH / place(_machines(first, second, reached, apart=apart), [(_LAYOUT, work)]).step_s


def _fitted() -> tuple[float, dict[str, float]]:
    """Fit the seconds of a layer to the first row, and what two links reach to the others."""
    reached = {"infiniband": _ASSUMED * _GBIT["infiniband"] / 8 * 1e9, "ethernet": 1e9}

    def off(layer_s: float) -> float:
        rate = _samples_per_s("infiniband", "infiniband", _work(_LAYOUT, layer_s), reached)
        return rate - _SAMPLES_PER_S["infiniband"]

    found: Any = brentq(off, 1e-4, 1.0)
    layer_s = float(found)
    work = _work(_LAYOUT, layer_s)
    for name in ("roce", "ethernet"):

        def missing(log_rate: float, name: str = name) -> float:
            tried = reached | {name: math.exp(log_rate)}
            return _samples_per_s(name, name, work, tried) - _SAMPLES_PER_S[name]

        # Between 0.2 and 200 GB/s.
        log_rate: Any = brentq(missing, np.log(2e8), np.log(2e11))
        reached[name] = math.exp(log_rate)
    return layer_s, reached


def _stages(quick: bool) -> list[Check]:
    """Compare exact splits with even ones, with the closed form and with all splits."""
    speeds, times = [1.25, 1.0], [1.0] * 32
    even = timed_split([16, 16], times, speeds=speeds, micro_batches=32).step_s
    exact = split_layers(times, speeds=speeds, micro_batches=32).step_s
    rng = np.random.default_rng(0)
    closed, brute = [], []
    for _ in range(40 if quick else 400):
        stages = int(rng.integers(1, 5))
        layers = int(rng.integers(stages, 13))
        costs, fast = rng.uniform(0.2, 3, layers).tolist(), rng.uniform(0.3, 2, stages).tolist()
        how = {"speeds": fast, "micro_batches": int(rng.integers(1, 33))}
        found = split_layers(costs, **how).step_s
        by_speed = timed_split(proportional_layers(layers, fast), costs, **how).step_s
        closed.append(found / by_speed)
        cuts = itertools.combinations(range(1, layers), stages - 1)
        every = (np.diff((0, *cut, layers)).tolist() for cut in cuts)
        brute.append(found / min(timed_split(split, costs, **how).step_s for split in every))
    return [
        Check("2 stages by speed over even ones, 1.25x apart", even / exact, 1.08, "higher"),
        Check("2 exact over the closed form, worst", max(closed), 1.0 + 1e-9, "lower"),
        Check("2 exact over the best of all splits, worst", max(brute), 1.0 + 1e-9, "lower"),
    ]


def _assignment(layer_s: float, reached: dict[str, float]) -> list[Check]:
    """Ask where ranks go, on the paper's networks and on one that is fast everywhere."""
    layouts = [_LAYOUT, Layout(data=32), Layout(data=8, pipeline=4)]
    works = [(layout, _work(layout, layer_s)) for layout in layouts]
    found = {}
    for name, between in (("paper's", reached["ethernet"]), ("fast", reached["infiniband"])):
        machines = replace(
            _machines("infiniband", "infiniband", reached, apart=True),
            between_bytes_per_s=between,
        )
        best = place(machines, works)
        found[name] = best
        print(
            f"{name} network between clusters: {best.layout.data} data x {best.layout.pipeline} "
            f"pipeline, order {' < '.join(best.order)}, crossing {', '.join(best.crossing)}"
        )
    machines = _machines("infiniband", "roce", reached)
    every = [item.step_s for item in placements(machines, *works[0])]
    is_holmes = found["paper's"].crossing == ("pipeline",)
    changes = found["fast"].crossing != found["paper's"].crossing
    return [
        Check("5 only pipelines cross where Ethernet is slow", float(is_holmes), 1.0, "higher"),
        Check("5 another answer where it is fast", float(changes), 1.0, "higher"),
        Check("1 best order over the worst (simulated)", max(every) / min(every), 1.3, "higher"),
    ]
