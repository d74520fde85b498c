"""Forecasts of cloud metrics: the shipped checkpoint beside rules, other models and AutoETS.

The checkpoint learned from generated series. How forecasters are weighed was tuned on generated
series and on real ones of other kinds (request rates, spot instances, pods, carbon, weather). The
15 real series of cloud metrics are scored on their last 12 windows of 48 steps, each from all that
came before it. `--quick` scores generated series that no checkpoint saw, so that the real ones are
not looked at while something is tried.
"""

from collections import Counter

import numpy as np
from benchmarks import peers
from benchmarks.common import Check
from benchmarks.operate._against_autoets import score_checks, speed_checks
from benchmarks.operate._autoets import AutoETSPeer
from benchmarks.operate._decoding_cells import decoding_checks
from benchmarks.operate._heads import head_checks
from benchmarks.operate._pretraining_cells import scaling_checks
from benchmarks.operate._real_series import real_series
from benchmarks.operate._wild_contexts import wild_checks

from steelyard.errors import BackendError
from steelyard.operate.forecast import (
    Forecaster,
    ForecastReport,
    RecentQuantiles,
    SeasonalNaive,
    evaluate,
)
from steelyard.operate.forecast.blending import BlendedForecaster
from steelyard.operate.forecast.choosing import ChosenForecaster, default_forecaster
from steelyard.operate.forecast.conformal import AdaptiveConformal
from steelyard.operate.forecast.corpus import generate_corpus
from steelyard.operate.forecast.ets import DampedETS
from steelyard.operate.forecast.networks.direct import DLinearForecaster, GRUForecaster
from steelyard.operate.forecast.networks.forecaster import MaskedEncoderForecaster
from steelyard.operate.series import SeriesSet
from steelyard.parallel import torch_threads

PAPER = ["53-cloudops-pretraining"]

_HORIZON = 48
_WINDOWS = 12
_COVERED_WINDOWS, _COVERED_STRIDE = 36, 24
_HELD_OUT_SEED = 4242


def run(quick: bool) -> list[Check]:
    """Score, then check heads, coverage, wild contexts and the grid of sizes."""
    with torch_threads(1):
        series = generate_corpus(15, length=2600, seed=_HELD_OUT_SEED) if quick else real_series()
        kind = "generated" if quick else "real"
        windows = 4 if quick else _WINDOWS
        default = default_forecaster(_HORIZON)
        reports, peer = _reports(default, series, windows)
        _print_scores(reports, kind)
        checks = _accuracy(reports, kind)
        label = f"on {len(series)} {kind} series"
        if peer is not None:
            ours = (("MaskedEncoder", "encoder alone: "), ("Chosen", ""))
            checks += score_checks(reports, ours, label)
        rivals = (MaskedEncoderForecaster.shipped(), default, _blend())
        checks += speed_checks(rivals, series, windows, peer)
        checks += _coverage(series, kind, quick)
        checks += decoding_checks(quick)
        checks += head_checks(quick)
        checks += wild_checks(2_000 if quick else 100_000)
        return [*checks, *scaling_checks()]


def _reports(
    default: ChosenForecaster, series: SeriesSet, windows: int
) -> tuple[dict[str, ForecastReport], AutoETSPeer | None]:
    """Score all forecasters on the same windows; those that learn see what lies before them."""
    past = series.before(windows * _HORIZON)
    models: list[Forecaster] = [MaskedEncoderForecaster.shipped(), DampedETS()]
    own: list[Forecaster] = [DLinearForecaster(), GRUForecaster()]
    rules: list[Forecaster] = [RecentQuantiles(), SeasonalNaive()]
    rivals: list[Forecaster] = [default, _blend(), *models, *own, *rules]
    for item in rivals:
        if item not in models:
            item.fit(past)
    used = Counter(choice.used for choice in default.choices.values())
    print("the default forecaster uses " + ", ".join(f"{n} x {name}" for name, n in used.items()))
    rivals[0].predict(past, _HORIZON)  # warms the libraries up
    reports = {item.name: evaluate(item, series, _HORIZON, windows, _HORIZON) for item in rivals}
    peer = AutoETSPeer()
    try:
        peers.python("statsforecast")
    except BackendError as error:
        print(f"AutoETS is not compared: {error} ({error.hint})")
        return reports, None
    report = evaluate(peer, series, _HORIZON, windows, _HORIZON)
    return reports | {peer.name: report}, peer


def _blend() -> BlendedForecaster:
    """Return the blend of the default forecaster alone, without weights of any series."""
    models = [MaskedEncoderForecaster.shipped(), DampedETS()]
    parts = [*models, RecentQuantiles(), SeasonalNaive(), RecentQuantiles(288)]
    return BlendedForecaster(parts, horizon=_HORIZON, stride=_HORIZON // 2, lead=0.7)


def _print_scores(reports: dict[str, ForecastReport], kind: str) -> None:
    """Print the table of scores, per series and pooled."""
    rule = reports["RecentQuantiles"]
    print(f"{kind} series: CRPS over the last windows, and the ratio to recent quantiles")
    for name, report in reports.items():
        ratio, wins = report.crps_ratio(rule)
        pooled = report.pooled
        print(
            f"  {name:<22} geometric mean {ratio:9.4g}, better on {wins:2d}; pooled CRPS "
            f"{pooled.crps:9.4g}, MASE {pooled.mase:.3g}, sMAPE {pooled.smape:.3f}, 80 % held "
            f"{pooled.coverage:.0%}, {1 / report.seconds_per_window:,.0f} windows/s"
        )
    print("  by series: " + ", ".join(reports))
    for key in rule.series:
        cells = " ".join(f"{report.series[key].crps:10.4g}" for report in reports.values())
        print(f"    {key:<38} {cells}")


def _accuracy(reports: dict[str, ForecastReport], kind: str) -> list[Check]:
    """Hold the default forecaster against both rules; the encoder alone beside it."""
    ours = reports["Chosen"]
    recent, naive = reports["RecentQuantiles"], reports["SeasonalNaive"]
    ratio, wins = ours.crps_ratio(recent)
    naive_ratio, naive_wins = ours.crps_ratio(naive)
    pooled = ours.pooled.crps / naive.pooled.crps
    print(
        f"against seasonal naive: geometric mean {naive_ratio:.3f}; pooled, over recent quantiles: "
        f"{ours.pooled.crps / recent.pooled.crps:.3f}"
    )
    label = f"on {len(ours.series)} {kind} series"
    alone = reports["MaskedEncoder"]
    return [
        *_encoder_alone(alone, naive, label),
        Check(f"1 CRPS over recent quantiles, geometric mean {label}", ratio, 0.97, "lower"),
        Check(f"1 series better than recent quantiles {label}", wins, 8, "higher"),
        Check(f"1 series better than seasonal naive {label}", naive_wins, 10, "higher"),
        Check(f"1 pooled CRPS over seasonal naive {label}", pooled, 0.85, "lower"),
    ]


def _encoder_alone(ours: ForecastReport, naive: ForecastReport, label: str) -> list[Check]:
    """Hold the pretrained encoder, used alone, against seasonal naive."""
    wins = ours.crps_ratio(naive)[1]
    pooled = ours.pooled.crps / naive.pooled.crps
    return [
        Check(f"1 encoder alone: better than seasonal naive {label}", wins, 10, "higher"),
        Check(f"1 encoder alone: pooled CRPS over seasonal naive {label}", pooled, 0.85, "lower"),
    ]


def _coverage(series: SeriesSet, kind: str, quick: bool) -> list[Check]:
    """Measure how often 80 % intervals hold, as they are and as users get them."""
    windows, stride = (12, 48) if quick else (_COVERED_WINDOWS, _COVERED_STRIDE)
    checks = []
    for forecaster in (MaskedEncoderForecaster.shipped(), DampedETS(), RecentQuantiles()):
        plain = evaluate(forecaster, series, _HORIZON, windows, stride).pooled
        # Corrections are learned on the windows before, and on each window after it was scored.
        corrected = AdaptiveConformal(forecaster)
        held, steps = 0, 0
        before = min(windows, int(min(series.lengths)) // 2 // _HORIZON)
        for window in range(windows, 0, -1):
            back = _HORIZON + stride * (window - 1)
            if window == windows:
                corrected.learn(series.before(back), _HORIZON, max(before // 3, 1))
            made = corrected.predict(series.before(back), _HORIZON)
            for row, (name, forecast) in enumerate(zip(series.ids, made, strict=True)):
                end = int(series.lengths[row]) - back
                actual = series.row(row)[end : end + _HORIZON]
                held += int(forecast.covered(actual).sum())
                steps += int(np.isfinite(actual).sum())
                # Overlapping windows: only what came before the next one may be learned.
                corrected.observe(name, forecast, actual[:stride])
        share = held / steps
        print(
            f"80 % intervals of {forecaster.name} held {plain.coverage:.1%} as they are, "
            f"{share:.1%} corrected, {windows * len(series)} windows"
        )
        label = f"6 80 % intervals of {forecaster.name} on {kind} series hold"
        checks += [
            Check(f"{label} at least", share, 0.7, "higher"),
            Check(f"{label} at most", share, 0.9, "lower"),
        ]
    return checks
