"""Long-context serving: four numbers of a context against the paper, this engine and sessions.

The engine is calibrated once (a profile of its steps and one timed copy of blocks); then prompts,
decoding steps and swaps of other lengths are predicted and measured. The fit over GPU types of
Fu 2024 is not part of this file.
"""

import csv
from dataclasses import replace
from pathlib import Path

from benchmarks.common import Check
from benchmarks.cost._engine_cells import engine_checks
from benchmarks.cost._sessions import simulate_sessions

from steelyard import catalog
from steelyard.cost import KVSpec, SessionLoad, serve_point, sessions
from steelyard.cost.longcontext import ServePoint
from steelyard.plan import compress_kv

PAPER = ["60-long-context-peak"]

_GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "long_context.csv"
_YI = catalog.architecture_by_name("yi-34b")
_A100 = replace(
    catalog.accelerator("A100-SXM4-80GB"),
    memory_bytes=80 * 2**30,
    memory_bytes_per_s=2.0e12,
    host_link_bytes_per_s=20e9,
)
"""As the paper takes it: 80 GiB, 2 TB/s, 20 GB/s to the host."""


def run(quick: bool) -> list[Check]:
    """Run every check."""
    return [*_published(), *engine_checks(quick), *_compressed(), *_sessions(quick)]


def _point(context: int, **options: KVSpec) -> ServePoint:
    """Return the paper's running example: 34 billion parameters, its convention of attention."""
    return serve_point(_YI, _A100, context=context, convention="paper", parameters=34e9, **options)  # pyright: ignore[reportArgumentType]


def _published() -> list[Check]:
    """Compare peak mode with the printed table."""
    errors: dict[str, list[float]] = {}
    print(f"{'quantity':14s} {'context':>8s} {'published':>10s} {'derived':>10s}")
    with _GOLDEN.open() as stream:
        for row in csv.DictReader(stream):
            point = _point(int(row["context"]))
            values = {"decode_250_s": 250 * point.decode_s_per_token}
            got = values.get(row["quantity"]) or float(getattr(point, row["quantity"]))
            print(
                f"{row['quantity']:14s} {row['context']:>8s} {float(row['expected']):10.4g} "
                f"{got:10.4g}"
            )
            errors.setdefault(row["quantity"], []).append(abs(got / float(row["expected"]) - 1))
    print(
        "its figure says about 20 users at 4K; the formula gives 17 with 80 GiB. Its switch at "
        "50K, 1.1 s, reads GiB as GB; 1.23 s is exact"
    )
    return [
        Check(
            "1 worst error of prefill and decode against the published table",
            max(errors["prefill_s"] + errors["decode_250_s"]),
            0.03,
            "lower",
        ),
        Check(
            "1 worst error of the context switch against the published table",
            max(errors["switch_s"]),
            0.12,
            "lower",
        ),
        Check(
            "1 users that fit at 4K and 50K, off the published 17 and 1",
            max(errors["concurrency"]),
            0.0,
            "lower",
        ),
    ]


def _compressed() -> list[Check]:
    """Multiply the axes and see what changes."""
    plain, small = (
        _point(50_000),
        _point(50_000, kv=KVSpec(hidden=1 / 4, heads=1 / 4, layers=1 / 8)),
    )
    print(
        f"\n4 bits x 1/4 heads x 1/8 layers: {plain.kv_bytes / small.kv_bytes:.0f} times smaller, "
        f"prefill {small.prefill_s:.1f} s as before"
    )
    print(
        f"  users {plain.concurrency} to {small.concurrency}, switch {plain.switch_s:.3g} to "
        f"{small.switch_s:.3g} s, ",
        end="",
    )
    print(f"decode {plain.decode_s_per_token:.4f} to {small.decode_s_per_token:.4f} s per token")
    effects = {
        "switch": small.switch_s / plain.switch_s * 128,
        "decode": (plain.decode_s_per_token - small.decode_s_per_token)
        * _A100.memory_bytes_per_s
        / (plain.kv_bytes * (1 - 1 / 128)),
        "concurrency": small.concurrency / ((_A100.memory_bytes - 68e9) * 128 // plain.kv_bytes),
    }
    found = compress_kv(
        _YI, _A100, context=1_000_000, target_context=4000, convention="paper", parameters=34e9
    )
    best = found[0]
    print(
        f"1M tokens as cheap as 4K: {len(found)} ways, the first {best.kv} ({best.factor:.0f} "
        f"times, {best.point.concurrency} users)"
    )
    gain = max(1 - item.point.prefill_s / item.plain.prefill_s for item in found)
    return [
        Check(
            "4 error of the product of the compressed axes",
            abs(plain.kv_bytes / small.kv_bytes / 128 - 1),
            1e-9,
            "lower",
        ),
        Check(
            "4 error of the compression's effect on decode, switch and users",
            max(abs(value - 1) for value in effects.values()),
            1e-9,
            "lower",
        ),
        Check("4 prefill gain claimed for a compressed cache", gain, 0.0, "lower"),
    ]


def _sessions(quick: bool) -> list[Check]:
    """Compare the session model with the event simulator."""
    users = (1, 2, 5, 17, 18, 25, 50) if quick else range(1, 51)
    worst = 0.0
    print(f"\n{'context':>8s} {'users':>6s} {'answers/h':>10s} {'simulated':>10s} bottleneck")
    for context in (4096, 50_000):
        point = _point(context)
        for count in users:
            load = SessionLoad(users=count, rounds=4, think_s=30.0)
            forecast, simulated = sessions(point, load), simulate_sessions(point, load)
            error = abs(forecast.interactions_per_hour / simulated.interactions_per_hour - 1)
            worst = max(worst, error)
            if count in (1, 5, 17, 18, 50):
                rates = (
                    f"{forecast.interactions_per_hour:10.1f} "
                    f"{simulated.interactions_per_hour:10.1f}"
                )
                print(f"{context:8d} {count:6d} {rates} {forecast.bottleneck}")
    return [
        Check(
            "5 worst error of the session model against its simulation, 1 to 50 users",
            worst,
            0.05,
            "lower",
        )
    ]
