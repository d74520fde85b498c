"""Scores and speed beside AutoETS: compared series by series, because it diverges on some.

A pooled score of the peer is that of its worst forecast: one exploding trend of 10^100 leaves
nothing of the other series. So each series counts once, in its own scale, and those on which the
peer diverged are named.
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np
from benchmarks.common import Check
from benchmarks.operate._autoets import AutoETSPeer

from steelyard.operate.forecast import Forecaster, ForecastReport
from steelyard.operate.series import SeriesSet

__all__ = ["score_checks", "speed_checks"]

_DIVERGED = 100.0
"""Times the CRPS of recent quantiles beyond which a forecast is no forecast any more."""
_EXACT = 1e-5


def score_checks(
    reports: Mapping[str, ForecastReport], ours: Sequence[tuple[str, str]], label: str
) -> list[Check]:
    """Hold reports against AutoETS: median over all series, mean over those it did not diverge on.

    Args:
        reports: by name; one is the peer's.
        ours: what is compared: name of the report, and words for the check.
        label: which series.

    Returns:
        Two checks each: "not worse" is a ratio of at most 1.
    """
    theirs = next(item for name, item in reports.items() if name.startswith("AutoETS"))
    rule = reports["RecentQuantiles"]
    diverged = [
        name
        for name, item in theirs.series.items()
        if not item.crps <= _DIVERGED * max(rule.series[name].crps, _EXACT)
    ]
    named = ", ".join(f"{name} (CRPS {theirs.series[name].crps:.3g})" for name in diverged)
    print(f"{theirs.forecaster} diverged on {len(diverged)} of {len(rule.series)}: {named or '-'}")
    checks = []
    for name, words in ours:
        report = reports[name]
        ratios = {
            key: max(item.crps, _EXACT) / max(theirs.series[key].crps, _EXACT)
            for key, item in report.series.items()
        }
        # A diverged series is won in the median, where it weighs as much as any other, and left
        # out of the mean, where it alone would decide.
        kept = [ratio for key, ratio in ratios.items() if key not in diverged]
        mean = float(np.exp(np.mean(np.log(kept)))) if kept else float("nan")
        middle = float(np.median(list(ratios.values())))
        wins = sum(ratio < 1 for ratio in ratios.values())
        raw = report.pooled.crps / theirs.pooled.crps
        print(
            f"  {name} over {theirs.forecaster}: better on {wins} of {len(ratios)}, median ratio "
            f"{middle:.3f}, geometric mean without the diverged {mean:.3f}, pooled {raw:.3g}"
        )
        checks += [
            Check(f"1 {words}CRPS over AutoETS, median {label}", middle, 1.0, "lower"),
            Check(
                f"1 {words}CRPS over AutoETS, geometric mean where it did not diverge, {label}",
                mean,
                1.0,
                "lower",
            ),
        ]
    return checks


def speed_checks(
    rivals: tuple[Forecaster, Forecaster, Forecaster],
    series: SeriesSet,
    windows: int,
    peer: AutoETSPeer | None,
) -> list[Check]:
    """Hold forecasts per second of processor time against the bar and the peer.

    Processor time, because a machine that others use too stops one rival longer than the other.

    Args:
        rivals: the pretrained encoder alone; the default forecaster, fitted on what lies before the
            windows; and the blend, of which every part is asked.
        series: the series.
        windows: windows of each that the peer forecast.
        peer: the peer after its forecast; None where it is not there.

    Returns:
        The checks; against the peer only where it is there.
    """
    horizon = 48
    rows = np.repeat(np.arange(len(series)), windows)
    ends = series.lengths[rows] - horizon * np.tile(np.arange(windows, 0, -1), len(series))
    context = series.cut(rows, np.zeros_like(ends), ends)
    alone, default, blend = (_rate(item, context, horizon) for item in rivals)
    checks = [Check("5 encoder's windows/s of processor time over 200", alone / 200, 1.0, "higher")]
    if peer is None:
        return checks
    slow = len(context) / peer.seconds
    print(
        f"windows per second of processor time: encoder {alone:,.0f}, default {default:,.0f}, "
        f"blend {blend:,.0f}, {peer.name} {slow:,.2f} (480 steps of context, not seasonal)"
    )
    return [
        *checks,
        Check("5 encoder's windows/s over those of AutoETS", alone / slow, 20, "higher"),
        Check(
            "5 default forecaster's windows/s over those of AutoETS", default / slow, 20, "higher"
        ),
        Check("5 blend's windows/s over those of AutoETS", blend / slow, 20, "higher"),
    ]


def _rate(forecaster: Forecaster, context: SeriesSet, horizon: int) -> float:
    """Return forecasts per second of processor time, the middle of three calls."""
    rates = []
    for _ in range(3):
        begin = time.process_time()
        forecaster.predict(context, horizon)
        rates.append(len(context) / (time.process_time() - begin))
    return float(np.median(rates))
