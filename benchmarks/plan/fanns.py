"""Index and hardware of a vector search chosen together (Jiang et al. 2023, arXiv 2306.11182).

1 and 2 compare designs for FPGAs with what was published, 3 and 4 choose an index for this
machine's processor by forecast, beside measuring every setting and beside the rule of thumb.
"""

import csv
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._shared import shared
from benchmarks.plan._chosen_index import choice_checks

from steelyard.catalog.fpga import fpga
from steelyard.cost.vector_search import FpgaStages, SearchPoint, queue_cycles
from steelyard.plan.retrieve import RecallTable, SearchDesign, codesign
from steelyard.sim.pipeline import ScaleOut, SearchPipeline, latency_sampler, systolic_select

PAPER = ["39-fanns"]

_VECTORS = {
    "SIFT100M": 10**8,
    "Deep100M": 10**8,
    "SIFT500M": 5 * 10**8,
    "SIFT1000M": 10**9,
    "Deep1000M": 10**9,
}
_LEVELS = ("1", "5", "10", "25", "50", "75", "90", "95", "99", "99.9")
_QUERIES = 200
_SCALE_OUT = "scaleout"


def run(quick: bool) -> list[Check]:
    """Compare designs, latencies and scale-out with what was published."""
    folder = shared("fanns-measurements")
    with (folder / "designs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        *_design_checks(folder, rows, quick),
        _brute_force_check(quick),
        *_latency_checks(folder),
        *_scale_out_checks(folder),
        *choice_checks(quick),
    ]


def _design_checks(folder: Path, rows: list[dict[str, str]], quick: bool) -> list[Check]:
    """Predict the rate of every published design, and find the published optima by search."""
    worst = max(_rate_error(row) for row in rows)
    generated = [row for row in rows if row["set"] == "generated"]
    found, longest_s = {"networked": 0, "older shell": 0}, 0.0
    for row in generated[::4] if quick else generated:
        began_s = time.perf_counter()
        shell = _shell_that_finds(folder, row)
        longest_s = max(longest_s, time.perf_counter() - began_s)
        if shell:
            found[shell] += 1
        print(f"{row['dataset']} K={row['k']} on {row['device']}: {shell or 'not found'}")
    share = sum(found.values()) / len(generated[::4] if quick else generated)
    print(f"{found}; slowest search {longest_s:.1f} s")
    return [
        Check("1 largest error of the 103 predicted rates", worst, 1e-3, "lower"),
        Check("1 share of the published optima that are found", share, 1.0, "higher"),
    ]


def _rate_error(row: dict[str, str]) -> float:
    """Return the relative error of the rate of a design with the parameters it was built with."""
    cards = FpgaStages(fpga("U55C"), utilization=1.0)
    point = SearchPoint(
        num_vectors=_VECTORS[row["dataset"]] // int(row["accelerators"]),
        nlist=int(row["nlist"]),
        nprobe=int(row["nprobe"]),
        k=int(row["k"]),
        opq=row["opq"] == "1",
    )
    wanted = {
        "rotation_unroll": row["opq_unroll"],
        "cell_units": row["s2_pe"],
        "cell_queues": row["s3_l1_queues"],
        "table_units": row["s4_pe"],
        "scan_units": row["s5_pe"],
    }
    hz = float(row["freq_mhz"]) * 1e6
    cycles = 0.0
    for stage in cards.stages(point):
        same = [
            time_s * cards.card.hz
            for time_s, config in zip(stage.times_s, stage.configs, strict=True)
            if all(str(config[name]) == value for name, value in wanted.items() if name in config)
            and (
                "scan_units" not in config or _sorts(config) == (row["s6_sort_groups_on"] == "True")
            )
        ]
        # Cards of other sizes hold more per bank: then no option of this one has those units.
        cycles = max(cycles, min(same) if same else _scan_cycles(point, row))
    return abs(hz / cycles / float(row["predicted_qps"]) - 1)


def _sorts(config: Mapping[str, object]) -> bool:
    return "sorting_networks" in config


def _scan_cycles(point: SearchPoint, row: dict[str, str]) -> float:
    """Return the cycles of scanning and selection for a number of units."""
    units = int(row["s5_pe"])
    codes = point.cell_codes(units)
    scan = point.nprobe * (2 + 256 + units - 1 + 63 + codes)
    found = point.nprobe * codes
    sorts = row["s6_sort_groups_on"] == "True"
    return max(scan, found if sorts else queue_cycles(point.k, found / 2))


def _shell_that_finds(folder: Path, row: dict[str, str]) -> str:
    """Return with which shell the search over all indexes ends at the published rate."""
    where = {"engine": "cpu", "dataset": row["dataset"]}
    held = _VECTORS[row["dataset"]] // int(row["accelerators"])
    goal = int(row["recall_goal_pct"]) / 100
    points = RecallTable.read(folder / "recall_nprobe.csv", where=where).points(
        held, int(row["k"]), goal
    )
    shells = {"networked": row["device"], "older shell": "U280-local"}
    for shell, name in shells.items():
        model = FpgaStages(fpga(name), utilization=int(row["max_util_pct"]) / 100)
        best = codesign(points, model).designs[0]
        if abs(best.queries_per_s / float(row["predicted_qps"]) - 1) < 1e-3:
            return shell
    return ""


def _brute_force_check(quick: bool) -> Check:
    """Try every combination of one index and compare with the search that leaves options out."""
    point = SearchPoint(num_vectors=10**8, nlist=4096, nprobe=4, k=10, opq=True)
    model = FpgaStages(fpga("U55C"), utilization=0.5)
    stages = model.stages(point)
    if quick:
        point = SearchPoint(num_vectors=10**8, nlist=4096, nprobe=2, k=1)
        stages = model.stages(point)
    best = codesign([point], model).designs[0]
    least, tried = np.inf, 0
    *first, last = [np.column_stack([stage.times_s, stage.resources]) for stage in stages]
    for rows in itertools.product(*first):
        taken = model.used + sum(row[1:] for row in rows)
        fits = (taken + last[:, 1:] <= model.capacity).all(axis=1)
        tried += len(last)
        if fits.any():
            slowest = max(row[0] for row in rows)
            least = min(least, float(np.maximum(last[fits, 0], slowest).min()))
    print(f"brute force over {tried:,} designs: {1 / least:,.0f}, search {best.queries_per_s:,.0f}")
    apart = abs(best.queries_per_s * least - 1)
    return Check("1 search off brute force", apart, 1e-9, "lower")


def _latencies(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "latency_quantiles.csv").open(newline="") as file:
        rows = {f"{row['design']}/{row['accelerators']}": row for row in csv.DictReader(file)}
    return rows


def _built(folder: Path, name: str) -> SearchDesign:
    """Return the design of a measured run, such as SIFT100M_K10_R80_util50."""
    dataset, k, goal, share = name.split("_")
    where = {"engine": "cpu", "dataset": dataset}
    table = RecallTable.read(folder / "recall_nprobe.csv", where=where)
    points = table.points(_VECTORS[dataset], int(k[1:]), int(goal[1:]) / 100)
    return codesign(points, FpgaStages(fpga("U55C"), utilization=int(share[4:]) / 100)).designs[0]


def _latency_checks(folder: Path) -> list[Check]:
    """Simulate the six measured designs; one constant stands for network and host."""
    rows = _latencies(folder)
    singles = {
        row["design"]: float(row["p50_ms"]) / 1e3
        for row in rows.values()
        if row["accelerators"] == "1" and _SCALE_OUT not in row["design"]
    }
    apart, pairs = 0.0, []
    for name, measured_s in singles.items():
        design = _built(folder, name)
        fixed = {
            part: took for part, took in design.stage_s.items() if part not in ("scan", "selection")
        }
        pipeline = SearchPipeline(design.point, design.config, fixed, hz=fpga("U55C").hz)
        full = pipeline.run(_QUERIES)
        calm = pipeline.run(_QUERIES, rate_per_s=design.queries_per_s / 20, seed=1)
        apart = max(apart, abs(full.queries_per_s / design.queries_per_s - 1))
        pairs.append((float(np.median(calm.latency_s)), measured_s))
        print(
            f"{name}: {design.queries_per_s:,.0f} predicted, {full.queries_per_s:,.0f} simulated "
            f"queries/s; {pairs[-1][0] * 1e3:.3f} ms in the stages of {measured_s * 1e3:.3f}"
        )
    constant_s, worst = _one_constant(pairs)
    print(f"network and host {constant_s * 1e3:.3f} ms")
    return [
        Check("2 simulated over predicted rate, largest difference", apart, 0.03, "lower"),
        Check("2 largest error of six medians with one constant", worst, 0.15, "lower"),
        Check("2 cycles of a systolic queue over the model's", _queue_ratio(), 1.0, "lower"),
    ]


def _one_constant(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the constant with the smallest largest relative error, and that error."""
    simulated, measured = np.array(pairs).T
    tried = np.linspace(0, 1e-3, 2001)
    errors = np.abs((simulated[:, None] + tried) / measured[:, None] - 1).max(axis=0)
    return float(tried[errors.argmin()]), float(errors.min())


def _queue_ratio() -> float:
    """Return the largest ratio of cycles over queues and inserts; kept values must be right."""
    rng = np.random.default_rng(0)
    ratios = []
    for length, inserts in ((1, 2000), (10, 2000), (100, 5000), (17, 300)):
        values = rng.random(inserts, dtype=np.float32)
        kept, cycles = systolic_select(values, length)
        is_right = np.array_equal(kept, np.sort(values)[:length])
        ratios.append(cycles / queue_cycles(length, inserts) if is_right else np.inf)
    return float(max(ratios))


def _scale_out_checks(folder: Path) -> list[Check]:
    """Compare quantiles of 2 to 8 accelerators with the slowest of draws from one."""
    rows = {
        int(row["accelerators"]): row
        for row in _latencies(folder).values()
        if _SCALE_OUT in row["design"]
    }
    single = latency_sampler(
        {float(level) / 100: float(rows[1][f"p{level}_ms"]) / 1e3 for level in _LEVELS}
    )
    measured = {count: dict(_two_quantiles(row)) for count, row in rows.items()}
    network = ScaleOut.fitted(single, measured)
    worst = 0.0
    for count in (count for count in measured if count > 1):
        drawn = network.latencies_s(single, count)
        errors = [np.quantile(drawn, level) / value - 1 for level, value in measured[count].items()]
        worst = max(worst, *map(abs, errors))
        print(f"{count} accelerators: p50 {errors[0]:+.1%}, p95 {errors[1]:+.1%}")
    return [Check("2 largest error of p50 and p95 with 2 to 8 cards", worst, 0.12, "lower")]


def _two_quantiles(row: dict[str, str]) -> Iterator[tuple[float, float]]:
    yield 0.5, float(row["p50_ms"]) / 1e3
    yield 0.95, float(row["p95_ms"]) / 1e3
