"""Ten triples of goals: does the advice from one measurement hold the best of another."""

import itertools
from dataclasses import replace

from benchmarks.common import Check
from benchmarks.plan._cap_model import Subject

from steelyard import catalog
from steelyard.catalog.hardware import Accelerator
from steelyard.plan.tradeoff.predicted import Goals
from steelyard.plan.tradeoff.recommend import recommend
from steelyard.plan.tradeoff.table import TradeoffPoint, TradeoffTable, tabulate

__all__ = ["DEVICE", "advice_checks", "infeasible_predictions"]

# The device only stands in for predictions of what was not measured, which is nothing here.
DEVICE = Accelerator(
    name="this machine",
    vendor="",
    kind="cpu",
    year=2024,
    peak_flops_per_s={"fp32": 1e11},
    memory_bytes=8e9,
    memory_bytes_per_s=1e10,
    host_link_bytes_per_s=5e9,
)


def advice_checks(whole: TradeoffTable, made: Subject) -> list[Check]:
    """Make advice of one half of the seeds and rounds, and judge it by the other."""
    table, held = _half(whole, (0, 1), (0, 1)), _half(whole, (2, 3), (2,))
    dense = table.points[0]
    trained = made.model.architecture.max_positions
    contexts = (trained // 4, trained // 2, round(0.9 * trained), 2 * trained)
    triples = [
        Goals(context=context, accuracy_drop=drop, ttft_s=slack * dense.ttft_s)
        for context, (drop, slack) in itertools.product(contexts, ((0.05, 2.0), (0.3, 2.0)))
    ]
    triples += [
        Goals(context=trained // 4, accuracy_drop=0.05, ttft_s=0.8 * dense.ttft_s),
        Goals(context=trained // 4, accuracy_drop=1.0, tpot_s=0.8 * dense.tpot_s),
    ]
    held_right = judged = 0
    for goals in triples:
        advice = recommend(goals, made.model.architecture, table=table)
        top = [item.configuration.name for item in advice.ranked[:3]]
        best = _best(held, goals)
        name = best.configuration.name if best else "none"
        is_right = name in top if best else not advice.is_feasible
        judged, held_right = judged + 1, held_right + is_right
        print(
            f"context {goals.context}, drop {goals.accuracy_drop:.2f}, TTFT {goals.ttft_s:.3g} s, "
            f"TPOT {goals.tpot_s:.3g} s: best held out {name}; advised {', '.join(top) or 'none'}"
            + ("" if is_right else "  MISSED")
        )
    return [
        Check("2 goal triples judged", judged, 10, "higher"),
        Check("2 of them whose best is in the top three", held_right, 9, "higher"),
        *_infeasible(table, made),
    ]


def infeasible_predictions() -> list[Check]:
    """Ask, without any measurement, for what no technique reaches on a large accelerator."""
    arch = catalog.architecture_by_name("llama-3-8b")
    device = catalog.accelerator("H100-SXM5-80GB")
    asked = {
        "ttft": Goals(context=8000, ttft_s=1e-6),
        "tpot": Goals(context=8000, tpot_s=1e-6),
    }
    right = sum(
        set(recommend(goals, arch, device).relax) == {goal} for goal, goals in asked.items()
    )
    return [Check("2 of two infeasible predictions declared", right, 2, "higher")]


def _half(whole: TradeoffTable, seeds: tuple[int, ...], rounds: tuple[int, ...]) -> TradeoffTable:
    """Return the table of some seeds and rounds."""
    cells = whole.measured
    return tabulate(
        replace(
            cells,
            quality=tuple(cell for cell in cells.quality if cell.seed in seeds),
            speed=tuple(cell for cell in cells.speed if cell.round in rounds),
        )
    )


def _best(held: TradeoffTable, goals: Goals) -> TradeoffPoint | None:
    """Return the fastest configuration that reaches goals in the held-out measurement."""
    base = held.points[0]
    reach = [
        item
        for item in held.points
        if item.context_tokens >= goals.context
        and base.recall - item.recall <= goals.accuracy_drop
        and item.ttft_s <= goals.ttft_s
        and item.tpot_s <= goals.tpot_s
    ]
    return max(reach, key=lambda item: item.tokens_per_s, default=None)


def _infeasible(table: TradeoffTable, made: Subject) -> list[Check]:
    """Ask for what nothing reaches."""
    farthest = table.measured.plan.lengths[-1]
    fastest = min(item.tpot_s for item in table.points)
    asked = {
        "context": Goals(context=4 * farthest, accuracy_drop=1.0),
        "ttft": Goals(context=1, accuracy_drop=1.0, ttft_s=1e-6),
        "tpot": Goals(context=1, accuracy_drop=1.0, tpot_s=fastest / 10),
    }
    right = 0
    for goal, goals in asked.items():
        advice = recommend(goals, made.model.architecture, table=table)
        right += not advice.is_feasible and goal in advice.relax and bool(advice.nearest)
        print(f"infeasible in {goal}: relax {advice.relax}")
    return [Check("2 of three infeasible goals declared, with the goal named", right, 3, "higher")]
