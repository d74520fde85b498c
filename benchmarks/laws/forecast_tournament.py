"""Forecasts of larger runs from smaller ones, on every table of real runs, against simple rivals.

Every table whose runs span two decades of compute (of data where compute is missing) is cut at up
to five sizes that leave eight runs below and one at three times the size or more; the stored
quickstart ladders ask for their larger run, and count as one table per text. `laws.forecast` sees
the runs below and is scored on those beyond, beside each form fitted alone, the largest run's loss
and a straight line in log-log. A table's error is the mean over its cuts of the mean relative
error; tables are joined by their geometric mean, each once. The scale of intervals is learned
without the family that is scored.

The settings of the procedure (powers, ages, forms) were chosen on a part of these tables; families
in `ASIDE` took no part in that, and are shown apart. With `quick` every fourteenth table takes
part, at one cut; what needs all of them is left out.

The rival pip simple-scaling-laws (its default law and interval of a new run) is asked at one cut
per table, where it is installed (`python -m benchmarks peers install simple-scaling-laws`).
"""

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from benchmarks.common import Check
from benchmarks.laws import _simple_scaling
from benchmarks.laws._forecast_cases import Answer, Case, answers, cases
from benchmarks.laws._forecast_scale import learn_scale, table_of
from benchmarks.laws._forecast_tables import read_tables

from steelyard.laws.decisions.forecasting.entrants import LARGEST_RUN
from steelyard.laws.decisions.forecasting.scale import LEARNED, WidthScale
from steelyard.laws.fitting.terms import Array

PAPER = ["32-kaplan-scaling-laws", "22-hestness-predictable"]

ASIDE = ("convnet-zoo", "gemstones", "opt-curves")
"""Families that no setting was chosen on."""

_CUTS = 5
_QUICK = 14
_QUICK_PEER = 3
_MANY_TARGETS = 10
_PEER_S = 30.0
_Key = tuple[str, str]

_KIN = {
    "chinchilla": "power_law",
    "kaplan": "rectified",
    "coupled": "shifted",
    "saturating": "broken",
    "monomial": "line",
}
"""Forms of two axes with the form of one axis that stands for them in means over all tables."""


def run(quick: bool) -> list[Check]:
    """Score the forecaster, the forms alone, the rules and the peer."""
    tables = read_tables()
    asked = cases(tables[::_QUICK] if quick else tables, 1 if quick else _CUTS)
    found = answers(asked, 2)
    own = _by_table(found, lambda item: item.error)
    alone = {name: _by_table(found, _of(name)) for name in ("largest run", "line", *_KIN)}
    best = _best(found)
    _print(own, alone, best)
    checks = [
        Check(f"error over that of {name}", _mean(own) / _mean(errors), 1.0, "lower")
        for name, errors in alone.items()
    ]
    if quick:
        # A dozen tables say nothing about shares of tables or of intervals.
        return [*checks, *_peer(found, quick)]
    ratios = [own[key] / best[key] for key in own]
    naive = [own[key] / min(alone[name][key] for name in ("largest run", "line")) for key in own]
    checks += [
        Check(
            "error over the best form in hindsight, mean", _mean(own) / _mean(best), 1.15, "lower"
        ),
        Check("tables within 1.15x of it", _share(ratios, 1.15), 1.0, "higher"),
        Check("tables within 1.1x of both rules", _share(naive, 1.1), 1.0, "higher"),
    ]
    return [*checks, *_intervals(found), *_peer(found, quick)]


def _share(values: Sequence[float], most: float) -> float:
    """Return the share of values up to `most`."""
    return float(np.mean(np.asarray(values) <= most))


def _mean(errors: dict[_Key, float]) -> float:
    """Return the geometric mean over tables."""
    return float(np.exp(np.mean(np.log(list(errors.values())))))


def _by_table(found: list[Answer], of: Callable[[Answer], Array]) -> dict[_Key, float]:
    """Return each table's mean over cuts of the mean relative error."""
    errors: dict[_Key, list[float]] = {}
    for item in found:
        size = np.abs(np.expm1(np.clip(of(item), -20.0, 20.0)))
        errors.setdefault(table_of(item), []).append(float(np.mean(size)))
    return {key: float(np.mean(values)) for key, values in errors.items()}


def _of(name: str) -> Callable[[Answer], Array]:
    """Pick what one form or rule said, or its kin on tables of one axis."""

    def errors(item: Answer) -> Array:
        if name == LARGEST_RUN:
            return item.alone[name]
        if name in ("line", "monomial"):
            names = [key for key in item.alone if "monomial" in key or "nofloor" in key]
        else:
            names = [
                key
                for key in item.alone
                if key.split(":")[0] in (name, _KIN[name]) and "nofloor" not in key
            ]
        return item.alone[names[0]]

    return errors


def _best(found: list[Answer]) -> dict[_Key, float]:
    """Return the error of the form that did best on each table, known afterwards."""
    names = sorted({name for item in found for name in item.alone})
    each = [
        _by_table(
            [item for item in found if name in item.alone], lambda item, n=name: item.alone[n]
        )
        for name in names
    ]
    return {
        key: min(errors[key] for errors in each if key in errors)
        for key in dict.fromkeys(table_of(item) for item in found)
    }


def _print(
    own: dict[_Key, float], alone: dict[str, dict[_Key, float]], best: dict[_Key, float]
) -> None:
    """Show each family's mean errors in percent."""
    columns = {"forecast": own, "best": best, **alone}
    print(f"{'family':22s} {'tables':>6s} " + " ".join(f"{name[:11]:>11s}" for name in columns))
    for family in [*sorted({family for family, _ in own}), "all"]:
        keys = [key for key in own if family in (key[0], "all")]
        shown = [_mean({key: errors[key] for key in keys}) for errors in columns.values()]
        mark = " (aside)" if family in ASIDE else ""
        print(f"{family + mark:22s} {len(keys):6d} " + " ".join(f"{100 * e:11.2f}" for e in shown))


def _intervals(found: list[Answer]) -> list[Check]:
    """Score the 80 % intervals, their scale learned without the family."""
    families = sorted({table_of(item)[0] for item in found})
    scales: dict[str, WidthScale] = {}
    for family in families:
        others = [item for item in found if table_of(item)[0] != family]
        scales[family] = learn_scale(others)
    print(f"scale learned on all families: {learn_scale(found)}; in use: {LEARNED}")
    held: dict[_Key, list[float]] = {}
    widths: dict[_Key, list[float]] = {}
    errors: dict[_Key, list[float]] = {}
    for item in found:
        key = table_of(item)
        half = scales[key[0]].half_width(item.doubt, item.reach, 0.8)
        held.setdefault(key, []).extend((np.abs(item.error) <= half).tolist())
        widths.setdefault(key, []).extend(half.tolist())
        errors.setdefault(key, []).extend(np.abs(item.error).tolist())
    share = {key: float(np.mean(values)) for key, values in held.items()}
    for family in families:
        own = [value for key, value in share.items() if key[0] == family]
        half = median(w for key, values in widths.items() if key[0] == family for w in values)
        wrong = median(e for key, values in errors.items() if key[0] == family for e in values)
        print(f"{family:22s} held {np.mean(own):.0%}, half-width {half:.2%}, error {wrong:.2%}")
    many = [value for key, value in share.items() if len(held[key]) >= _MANY_TARGETS]
    low = [key[1] for key in share if len(held[key]) >= _MANY_TARGETS and share[key] < 0.6]
    print(f"fewer than 60 % held: {', '.join(low) or 'no table'}")
    wide = median(map(median, widths.values())) / median(map(median, errors.values()))
    coverage = float(np.mean(list(share.values())))
    return [
        Check("80 % intervals hold at least, over tables", coverage, 0.7, "higher"),
        Check("80 % intervals hold at most, over tables", coverage, 0.9, "lower"),
        Check(
            "tables of 10 targets with 60 % held",
            float(np.mean([value >= 0.6 for value in many])) if many else 1.0,
            1.0,
            "higher",
        ),
        Check("median half-width over median error", wide, 2.5, "lower"),
    ]


def _peer(found: list[Answer], quick: bool) -> list[Check]:
    """Ask pip simple-scaling-laws at the middle cut of each table."""
    by_table: dict[_Key, list[Answer]] = {}
    for item in found:
        by_table.setdefault(table_of(item), []).append(item)
    middle = [items[len(items) // 2] for items in by_table.values()]
    middle = middle[:_QUICK_PEER] if quick else middle
    said = _simple_scaling.forecasts([_question(item.case) for item in middle], _PEER_S)
    if said is None:
        print("checks against pip simple-scaling-laws left out: it is not installed")
        return []
    ours, theirs, held = [], [], []
    for item, answer in zip(middle, said, strict=True):
        measured = item.case.table.loss[item.case.asked]
        if "error" in answer:
            print(f"simple-scaling-laws, {item.case.table.name}: {answer['error']}")
            continue
        ours.append(np.mean(np.abs(np.expm1(item.error))))
        theirs.append(np.mean(np.abs(np.array(answer["value"]) / measured - 1)))
        inside = (np.array(answer["run_low"]) <= measured) & (
            measured <= np.array(answer["run_high"])
        )
        held.append(float(np.mean(inside)))
    ratio = float(np.exp(np.mean(np.log(ours)) - np.mean(np.log(theirs))))
    shown = [f"{100 * np.exp(np.mean(np.log(errors))):.2f} %" for errors in (theirs, ours)]
    print(
        f"pip simple-scaling-laws on {len(theirs)} of {len(middle)} tables: error {shown[0]}, ours "
        f"{shown[1]}; its 80 % intervals of a new run hold {np.mean(held):.0%}"
    )
    return [Check("error over that of pip simple-scaling-laws", ratio, 1.0, "lower")]


def _question(case: Case) -> dict[str, object]:
    """Write a case as the peer's worker reads it."""
    table = case.table
    return {
        "inputs": {name: column[case.known].tolist() for name, column in table.inputs.items()},
        "loss": table.loss[case.known].tolist(),
        # The peer takes a run to be of one size and amount of data, which a checkpoint is too.
        "runs": [str(row) for row in np.flatnonzero(case.known)],
        "at": {name: column[case.asked].tolist() for name, column in table.inputs.items()},
        "level": 0.8,
    }
