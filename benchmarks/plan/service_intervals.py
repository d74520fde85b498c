"""Intervals of `plan serve` where others measured: does 80 % hold 80 %, and is it narrow enough?

Step times are the roofline of the datasheet with the package's default efficiencies, as `plan
serve` takes them; nothing is fitted on what is compared.

1. Goodput: rates per accelerator at which the published curves of DistServe and vLLM (OPT-13B, 66B
   and 175B on A100s, figure 8) fall through several shares of requests that keep both limits,
   beside the forecast of the same placement at that share. Points of one curve are not independent.
2. Attainment at a given rate while both limits are tightened and loosened together, the other half
   of that figure: kept aside, and looked at once when the intervals stood.
3. What requests see: a published run of vLLM 0.19 on an RTX 4090, of which the simulator knows the
   arrivals and the lengths. The others ran on a GPU that the catalog lacks.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._distserve_paper import (
    ROWS,
    PaperRow,
    curve_points,
    drawn_lengths,
    transfer_s_per_token,
)
from benchmarks.serve.vllm_replay import RIGS, Rig, read_columns

from steelyard import catalog
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.roofline import Machine
from steelyard.cost.step_time import ServeStepTime
from steelyard.plan.machines import nodes_of
from steelyard.plan.service.arrangement import FleetInstance, ServiceLimits
from steelyard.plan.service.expected import expected
from steelyard.plan.service.load import ServiceLoad
from steelyard.plan.service.options import EngineOption, engine_options, roofline_relative
from steelyard.plan.service.planned import goodput_forecast
from steelyard.plan.service.search import ServiceSearch
from steelyard.quantity import Forecast
from steelyard.serve.client.summary import Slo
from steelyard.sim.fleet.instance import ReplicaGroup

PAPER = ["80-distserve"]

_SHARES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
Pair = tuple[str, Forecast, float]


def run(quick: bool) -> list[Check]:
    """Compare both kinds of forecasts.

    Args:
        quick: fewer requests and shares.
    """
    pairs = list(_goodputs(300 if quick else 2000, _SHARES[1::3] if quick else _SHARES))
    shares = list(_attainments(300 if quick else 2000))
    seen = list(_latencies())
    print(f"{'what':44s} {'forecast':>9s} {'80 % interval':>19s} {'measured':>9s}")
    for words, said, real in (*pairs, *shares, *seen):
        print(f"{words:44s} {said.value:9.4g} {said.low:9.4g} {said.high:9.4g} {real:9.4g}")
    return [
        *_checks("1 goodput", pairs),
        *_checks("2 attainment", shares),
        *_checks("3 latencies", seen),
    ]


def _checks(name: str, pairs: list[Pair]) -> list[Check]:
    """Return coverage and width."""
    inside = [said.low <= real <= said.high for _, said, real in pairs]
    half = [(said.high - said.low) / 2 / said.value for _, said, _ in pairs if said.value]
    errors = [abs(said.value / real - 1) for _, said, real in pairs if real]
    share = float(np.mean(inside))
    print(f"{name}: {sum(inside)} of {len(pairs)} inside, median error {np.median(errors):.1%}")
    width = float(np.median(half) / np.median(errors))
    return [
        Check(f"{name}: share inside the 80 % interval, at least", share, 0.7, "higher"),
        Check(f"{name}: share inside the 80 % interval, at most", share, 0.9, "lower"),
        Check(f"{name}: median half-width over median error", width, 2.5, "lower"),
    ]


def _goodputs(count: int, shares: tuple[float, ...]) -> Iterator[Pair]:
    """Yield forecasts of goodput beside the published curves."""
    for row in ROWS[:3]:
        load = ServiceLoad.drawn(*drawn_lengths(row.lengths), np.random.default_rng(0), count=count)
        for system in ("DistServe", "vLLM"):
            for share in shares:
                real = _crossing(row.model, system, 100 * share)
                if real is None:
                    continue
                search = _search(row, load, share)
                arrangement = _placement(search, row, system)
                said = goodput_forecast(search, arrangement, search.carried(arrangement))
                devices = arrangement.num_devices
                per_device = Forecast(
                    quantity=said.quantity,
                    value=said.value / devices,
                    low=said.low / devices,
                    high=said.high / devices,
                    provenance=said.provenance,
                    source=said.source,
                )
                yield f"{row.model} {system} {share:.0%}", per_device, real


def _attainments(count: int) -> Iterator[Pair]:
    """Yield forecasts of attainment at other limits beside the published curves."""
    for row in ROWS[:3]:
        load = ServiceLoad.drawn(*drawn_lengths(row.lengths), np.random.default_rng(0), count=count)
        search = _search(row, load, 0.9)
        for point in curve_points():
            if point.model != row.model or point.axis != "slo_scale":
                continue
            arrangement = _placement(search, row, point.system)
            rate = point.rate_per_device * arrangement.num_devices
            slo = Slo(ttft_s=point.scale * row.ttft_s, tpot_s=point.scale * row.tpot_s)
            said = expected(
                arrangement.groups,
                load.lasting(rate, 0.0),
                slo,
                spread=search.relative(arrangement),
                source="roofline",
            )
            found = next(item for item in said if item.quantity == "serve.slo_attainment")
            words = f"{row.model} {point.system} limits x {point.scale:g}"
            yield words, found, point.percent / 100


def _crossing(model: str, system: str, percent: float) -> float | None:
    """Return the rate per accelerator at which a curve falls through a percentage."""
    points = sorted(
        (item.rate_per_device, item.percent)
        for item in curve_points()
        if (item.model, item.system, item.axis) == (model, system, "rate_per_gpu")
    )
    for (rate, above), (after, below) in pairwise(points):
        if above >= percent > below:
            return rate + (after - rate) * (above - percent) / (above - below)
    return None


def _search(row: PaperRow, load: ServiceLoad, share: float) -> ServiceSearch:
    """Return the search of a row on A100s, with step times of the roofline."""
    arch = catalog.architecture_by_name(row.model)
    record = catalog.accelerator("A100-SXM4-80GB")
    machine = Machine.from_accelerator(record, dtype="fp16", cluster=nodes_of(record, 8))
    splits = {row.prefill, row.decode, (row.vllm_tensor, 1)}
    options = engine_options(
        arch,
        machine,
        step_tokens=512,
        tensors=sorted({tensor for tensor, _ in splits}),
        pipelines=sorted({pipeline for _, pipeline in splits}),
    )
    return ServiceSearch(
        load=load,
        slo=Slo(ttft_s=row.ttft_s, tpot_s=row.tpot_s),
        share=share,
        options=tuple(options),
        limits=ServiceLimits(
            nodes=4, node_transfer_s_per_token=transfer_s_per_token(arch), max_num_seqs=256
        ),
    )


def _placement(search: ServiceSearch, row: PaperRow, system: str) -> FleetInstance:
    """Return the published placement of a system."""

    def option(split: tuple[int, int]) -> EngineOption:
        return next(item for item in search.options if (item.tensor, item.pipeline) == split)

    if system == "vLLM":
        return search.colocated(option((row.vllm_tensor, 1)), whole=True)
    return search.apart(option(row.prefill), option(row.decode))


def _latencies() -> Iterator[Pair]:
    """Yield forecasts of what requests see beside two runs of vLLM."""
    for rig in RIGS:
        if not rig.accelerator:
            continue
        requests = read_columns(rig, "requests")
        for said in _expected(rig, requests):
            real = _seen(requests).get(said.quantity)
            if real is not None:
                yield f"{rig.name} {said.quantity}", said, real


def _expected(rig: Rig, requests: dict[str, np.ndarray]) -> list[Forecast]:
    """Forecast a run from the datasheet."""
    machine = Machine.from_accelerator(catalog.accelerator(rig.accelerator))
    arch = catalog.architecture_by_name("llama-3-8b")
    model = ServeStepTime.from_roofline(arch, machine)
    group = ReplicaGroup(
        step_time=PhaseStepTime.of(model),
        blocks=rig.kv_tokens // 16,
        token_budget=2048,
        max_num_seqs=rig.max_num_seqs,
    )
    columns = (
        requests["arrival_s"] - requests["arrival_s"].min(),
        requests["input_tokens"].astype(int),
        requests["output_tokens"].astype(int),
    )
    # Of limits that nothing keeps no attainment is looked at.
    spread = roofline_relative(arch, machine, 1)
    return expected((group,), columns, Slo(), spread=spread, source=model.source)


def _seen(requests: dict[str, np.ndarray]) -> dict[str, float]:
    """Return what the real engine's requests saw."""
    ttft = requests["first_token_s"] - requests["arrival_s"]
    spent = requests["last_token_s"] - requests["first_token_s"]
    further = requests["output_tokens"] - 1
    span_s = requests["last_token_s"].max() - requests["arrival_s"].min()
    return {
        "serve.ttft": float(ttft.mean()),
        "serve.ttft_p95": float(np.percentile(ttft, 95)),
        "serve.tpot": float((spent[further > 0] / further[further > 0]).mean()),
        "serve.e2e_latency": float((ttft + spent).mean()),
        "serve.throughput": float(requests["output_tokens"].sum() / span_s),
    }
