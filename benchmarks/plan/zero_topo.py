"""Sharding by levels of a machine's links: ratios of schemes on Frontier, and the search's choice.

GPT-NeoX of 20 billion parameters on 64 to 384 dies of Frontier, arXiv:2501.04266. All times are
simulated. Two numbers are fitted: the share of the peak that products reach, on the published share
of the peak of GPT with 175 billion parameters on Frontier (arXiv:2312.12705); and the share of the
links' rates, on the three published ratios, of which two are independent. Only the links' share
moves the ratios, so one of the two is left as a check. Micro-batch and accumulation are not
published: 1 and 4 are taken, and fits with other ones printed.
"""

from dataclasses import dataclass, replace

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._frontier import LENGTH, frontier_machine, gpt
from scipy.optimize import brentq

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Level
from steelyard.catalog.parameters import count_parameters
from steelyard.cost.layout import Layout
from steelyard.cost.roofline import Machine
from steelyard.cost.step import Overlap, StepCost, training_step
from steelyard.plan.sharding import PLAIN, QUANTIZED, ShardChoice, search_shards

PAPER = ["12-zero-topo"]

_NODE, _DIES, _FEWEST = 8, 384, 64
_MICRO, _STEPS = 1, 4
_BATCH = 1536
"""Sequences of a step of the search: 3.1 million tokens, as GPT-NeoX-20B was trained with
(arXiv:2204.06745)."""
_PUBLISHED = {"++ over 3": 1.405, "topo over ++": 1.707, "topo over 3": 2.398}
_PEAK_SHARE = 0.3614
_WIRE = {
    "weight_wire_bits": QUANTIZED.weight,
    "gradient_wire_bits": QUANTIZED.gradient,
}
_NEOX = gpt("gpt-neox-20b", 44, 6144, 64, vocabulary=50_432, tied=False)
_LARGE = gpt("175B", 96, 12288, 96)
_SCHEMES = {
    "3": {"zero_stage": 3},
    "++": {"zero_stage": 3, "weight_copy_shards": _NODE, **_WIRE},
    "topo": {
        "weight_shards": 2,
        "weight_copy_shards": 2,
        "copy_wire_bits": QUANTIZED.copy,
        "gradient_shards": _NODE,
        "zero_stage": 1,
        **_WIRE,
    },
}
"""Shard groups of ZeRO-3, ZeRO++ and ZeRO-topo; the second copy of ZeRO++ is kept in 16 bits."""


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """A machine whose links are fitted, with what its traffic hides, and its ratios."""

    machine: Machine
    overlap: Overlap
    ratios: dict[str, float]

    def __str__(self) -> str:
        """Return the ratios with the published ones."""
        told = (f"{name} {self.ratios[name]:.3f} ({known})" for name, known in _PUBLISHED.items())
        return f"links reach {self.machine.efficiencies.link:.3f}; {', '.join(told)}"


def run(quick: bool) -> list[Check]:
    """Fit two shares, compare ratios and bytes, and search; a quick run prints fewer fits."""
    plain = _products_fitted(frontier_machine())
    hiding, bare = (_links_fitted(plain, Overlap(data=share)) for share in (0.7, 0.0))
    print(f"traffic hides behind 0.7 of the compute: {hiding}\nnothing hides: {bare}")
    for micro, steps in () if quick else ((1, 1), (1, 8), (2, 4), (4, 4)):
        other = _links_fitted(plain, Overlap(data=0.0), micro=micro, steps=steps)
        print(f"nothing hides, {steps} micro-batches of {micro}: {other}")
    return [
        *_ratio_checks(hiding, "traffic hides as assumed"),
        *_ratio_checks(bare, "nothing hides"),
        *_efficiency(bare),
        *_bytes(plain),
        *_searches(frontier_machine(), bare.machine),
    ]


def _step(
    scheme: str,
    machine: Machine,
    overlap: Overlap,
    *,
    dies: int = _DIES,
    micro: int = _MICRO,
    steps: int = _STEPS,
) -> StepCost:
    """Cost a step of a scheme."""
    return training_step(
        _NEOX,
        machine=machine,
        micro_batch=micro,
        sequence_length=LENGTH,
        accumulation=steps,
        layout=Layout(data=dies, recompute="full", **_SCHEMES[scheme]),
        overlap=overlap,
    )


def _products_fitted(machine: Machine) -> Machine:
    """Fit the products' share of the peak to GPT of 175 billion parameters."""
    layout = Layout(tensor=4, pipeline=16, data=16, zero_stage=1, recompute="full")

    def with_share(share: float) -> Machine:
        return replace(machine, efficiencies=replace(machine.efficiencies, matmul=share))

    def missing(share: float) -> float:
        cost = training_step(
            _LARGE,
            machine=with_share(share),
            micro_batch=1,
            sequence_length=LENGTH,
            accumulation=40,
            layout=layout,
        )
        return cost.hfu - _PEAK_SHARE

    share = float(brentq(missing, 0.2, 0.95))  # pyright: ignore[reportArgumentType]
    print(f"products reach {share:.3f} of the peak (fitted to one published run)")
    return with_share(share)


def _ratios(machine: Machine, overlap: Overlap, micro: int, steps: int) -> dict[str, float]:
    """Return how many times faster one scheme is than another."""
    seconds = {
        name: _step(name, machine, overlap, micro=micro, steps=steps).time_s for name in _SCHEMES
    }
    return {
        "++ over 3": seconds["3"] / seconds["++"],
        "topo over ++": seconds["++"] / seconds["topo"],
        "topo over 3": seconds["3"] / seconds["topo"],
    }


def _links_fitted(
    machine: Machine, overlap: Overlap, *, micro: int = _MICRO, steps: int = _STEPS
) -> _Fit:
    """Fit the links' share to the published ratios, by least squares of logarithms."""

    def tried(share: float) -> _Fit:
        fitted = replace(machine, efficiencies=replace(machine.efficiencies, link=share))
        ratios = _ratios(fitted, overlap, micro, steps)
        return _Fit(machine=fitted, overlap=overlap, ratios=ratios)

    def loss(fit: _Fit) -> float:
        return sum(np.log(fit.ratios[name] / known) ** 2 for name, known in _PUBLISHED.items())

    return min((tried(float(share)) for share in np.geomspace(0.01, 1.0, 100)), key=loss)


def _ratio_checks(fit: _Fit, words: str) -> list[Check]:
    """Hold the ratios against the published ones."""
    return [
        Check(f"4 {name}, error, {words}", abs(fit.ratios[name] / known - 1), 0.15, "lower")
        for name, known in _PUBLISHED.items()
    ]


def _efficiency(fit: _Fit) -> list[Check]:
    """Compare 384 dies with 64: as many sequences a die, and as many in all."""

    def rate(dies: int, steps: int) -> float:
        cost = _step("topo", fit.machine, fit.overlap, dies=dies, steps=steps)
        return cost.tokens / cost.time_s / dies

    many = rate(_DIES, _STEPS)
    growing = many / rate(_FEWEST, _STEPS)
    fixed = many / rate(_FEWEST, _STEPS * _DIES // _FEWEST)
    print(f"384 dies over 64: {growing:.3f} with the batch growing, {fixed:.3f} with it fixed")
    return [
        Check("4 efficiency, batch fixed, at least", fixed, 0.90, "higher"),
        Check("4 efficiency, batch fixed, at most", fixed, 0.97, "lower"),
        Check("4 efficiency, batch growing, at least", growing, 0.90, "higher"),
        Check("4 efficiency, batch growing, at most", growing, 0.97, "lower"),
    ]


def _bytes(machine: Machine) -> list[Check]:
    """Compare the bytes that dies send over the network with the paper's volumes."""
    sent = {name: _step(name, machine, Overlap()).link_bytes[-1] for name in _SCHEMES}
    elements = float(count_parameters(_NEOX).total)
    nodes = _DIES // _NODE
    # Of all a ring passes through a node's port, a node's own part is missing; its dies share it.
    through = elements * (1 - 1 / nodes) / _NODE / 8
    weight, gradient = QUANTIZED.weight, QUANTIZED.gradient
    formula = {
        "3": _STEPS * 3 * 16 * through,
        "++": _STEPS * (weight + gradient) * through,
        "topo": (weight + gradient) * through,
    }
    off = max(abs(float(sent[name]) / formula[name] - 1) for name in formula)
    told = ", ".join(f"{name} {float(value) / 1e9:.2f} GB" for name, value in sent.items())
    print(f"bytes of a die over the network per step: {told}; off the formulas by {off:.1e}")
    return [
        Check("2 bytes over the network, error of formulas", off, 1e-9, "lower"),
        # The formulas make it a quarter exactly, so rounding may fall on either side.
        Check("2 topo's bytes over ++'s", float(sent["topo"] / sent["++"]), 0.25 + 1e-9, "lower"),
        Check("2 topo's bytes over 3's", float(sent["topo"] / sent["3"]), 0.10, "lower"),
    ]


def _searches(frontier: Machine, slow: Machine) -> list[Check]:
    """Ask for the groups on Frontier, on like links, on one level, and where memory binds."""
    levels = frontier.levels
    # As fast for each die at every level: its own port, and its share of the outer ones.
    rates = (100e9, 200e9, 800e9)
    equal = replace(
        frontier,
        levels=tuple(
            replace(level, bytes_per_s=rate) for level, rate in zip(levels, rates, strict=True)
        ),
    )
    flat = replace(frontier, levels=(Level(name="network", members=4096, bytes_per_s=100e9),))
    ours = _choice("Frontier", frontier)
    plain = _choice("Frontier, 16 bits on the wire", frontier, quantized=False)
    fitted = _choice("Frontier, links as fitted", slow)
    even = _choice("equal links", equal)
    middle = gpt("60B", 64, 8704, 64, tied=False)
    hybrid = _choice("one level, 60 billion", flat, middle, sizes=(2, 4, 8, 16, 32, 64, 128))
    bound = _choice("Frontier, 175 billion", frontier, _LARGE)
    return [
        _says("5 Frontier: groups of 2, 8 and all", _groups(ours) == (2, _NODE, _DIES)),
        _says("5 the same in 16 bits", _groups(plain) == (2, _NODE, _DIES)),
        _says("5 the same on links as fitted", _groups(fitted) == (2, _NODE, _DIES)),
        _says("5 equal links: other groups", _groups(even) != (2, _NODE, _DIES)),
        _says("5 one level: weights in groups", 1 < hybrid.groups["weight"] < _DIES),
        _says("5 memory binds: all over all", _groups(bound) == (_DIES, _DIES, _DIES)),
    ]


def _choice(
    words: str,
    machine: Machine,
    arch: Architecture = _NEOX,
    *,
    sizes: tuple[int, ...] = (),
    quantized: bool = True,
) -> ShardChoice:
    """Search, and print what is chosen."""
    found = search_shards(
        arch,
        machine,
        count=_DIES,
        global_batch=_BATCH,
        sequence_length=LENGTH,
        sizes=sizes,
        wires=(PLAIN, QUANTIZED) if quantized else (PLAIN,),
    )
    best = found.best
    chosen, cost = found.choice(best), found.cost.at(best)
    print(
        f"{words}: {len(found.fits)} candidates, {int(found.fits.sum())} fit; {chosen.groups}, "
        f"micro-batch {chosen.micro_batch}, wire {chosen.wire.weight:.2g} and "
        f"{chosen.wire.gradient:.2g} bits, {cost.data_s / cost.time_s:.2%} of the step is traffic"
    )
    return chosen


def _groups(choice: ShardChoice) -> tuple[int, int, int]:
    return choice.groups["weight"], choice.groups["gradient"], choice.groups["optimizer"]


def _says(name: str, is_so: bool) -> Check:
    return Check(name, float(is_so), 1.0, "higher")
