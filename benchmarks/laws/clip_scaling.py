"""Contrastive models: lower envelope, two training distributions, a held-out architecture.

Exponents are those of Cherti et al. 2023 (arXiv 2212.07143). Points are the published zero-shot
results of shared/data/openclip-scaling: ViT-B/32, B/16 and L/14 on LAION-80M, 400M and 2B (27 runs)
and on OpenAI's WIT-400M (3 runs). Compute is GMAC per sample times samples seen.
"""

import math

import numpy as np
import polars as pl
from benchmarks.common import Check
from benchmarks.laws._shared import shared

from steelyard import laws
from steelyard.laws.decisions.envelope import fit_envelope
from steelyard.laws.decisions.sources import compare_sources
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.contrastive import bottleneck, contrastive

PAPER = ["68-clip-scaling"]

_UNIQUE = {"LAION-80M": 80e6, "LAION-400M": 413e6, "LAION-2B": 2.3e9, "CLIP-WIT": 400e6}
_TASKS = {
    "imagenet1k": "acc1",
    "imagenet_robustness": "acc1",
    "mscoco_captions": "image_retrieval_recall@5",
}


def run(quick: bool) -> list[Check]:
    """Fit both sources per task, compare their slopes, and hold L/14 out."""
    tables = {task: _read(task, metric) for task, metric in _TASKS.items()}
    return [*_exponents(tables, 300 if quick else 3000), *_held_out(tables["imagenet1k"])]


def _read(task: str, metric: str) -> pl.DataFrame:
    """Read the runs of one task."""
    table = pl.read_csv(shared("openclip-scaling") / "zeroshot_results.csv").filter(
        pl.col("downstream_dataset") == task
    )
    return table.select(
        pl.col("arch"),
        pl.col("samples_seen_pretty").alias("scale"),
        pl.col("samples_seen").alias("samples"),
        pl.col("gmacs"),
        pl.col("gmacs_total").alias("total_gmacs"),
        pl.col("upstream_dataset").alias("pool"),
        pl.col("upstream_dataset").replace_strict(_UNIQUE).alias("unique_samples"),
        pl.when(pl.col("upstream_dataset") == "CLIP-WIT")
        .then(pl.lit("OpenAI"))
        .otherwise(pl.lit("LAION"))
        .alias("source"),
        (1 - pl.col(metric).cast(pl.Float64)).alias("error"),
        pl.lit(metric).alias("metric"),
    )


def _columns(table: pl.DataFrame) -> dict[str, np.ndarray]:
    """Return the columns as arrays."""
    return {name: table[name].to_numpy() for name in table.columns}


def _exponents(tables: dict[str, pl.DataFrame], bootstraps: int) -> list[Check]:
    """Compare the exponents with the printed ones and with each other."""
    printed = {("imagenet1k", "LAION"): -0.106, ("mscoco_captions", "LAION"): -0.0765}
    printed |= {("imagenet1k", "OpenAI"): -0.164, ("mscoco_captions", "OpenAI"): -0.051}
    compared = {
        task: compare_sources(_columns(table), bootstrap=Bootstrap(count=bootstraps))
        for task, table in tables.items()
    }
    for task, found in compared.items():
        pair = found.pairs[0]
        for source, envelope in found.envelopes.items():
            power = envelope.exponent(0.9)
            print(
                f"{task} {source} ({envelope.stat}): {power.value:.4f}, 90 % interval "
                f"{power.low:.3f} to {power.high:.3f}"
            )
        told = (
            f"differ, lines cross at {pair.crossing_gmacs.value:.2e} GMAC, scale {pair.scale}"
            if pair.do_differ
            else "not told apart"
        )
        print(
            f"  slopes: difference {pair.difference.value:.3f} [{pair.difference.low:.3f}, "
            f"{pair.difference.high:.3f}], {told}"
        )
    checks = []
    for (task, source), power in printed.items():
        distance = abs(compared[task].envelopes[source].exponent().value - power)
        checks.append(
            Check(
                f"1 {source} exponent on {task}, distance to the printed {power}",
                distance,
                0.003,
                "lower",
            )
        )
    difference = compared["imagenet_robustness"].pairs[0].difference
    return [
        *checks,
        Check(
            "1 ImageNet robustness, low end of the 90 % interval of LAION - OpenAI slope",
            difference.low,
            0.0,
            "higher",
        ),
    ]


def _held_out(table: pl.DataFrame) -> list[Check]:
    """Fit without L/14, predict its best runs, and ask what its small-data run is short of."""
    laion = table.filter(pl.col("source") == "LAION")
    small = laion.filter(pl.col("arch") != "ViT-L-14")
    large = laion.filter(pl.col("arch") == "ViT-L-14")
    envelope = fit_envelope(_columns(small))
    checks = []
    for scale, bar in (("3B", 3.0), ("13B", 1.0), ("34B", 1.0)):
        # Several pools were trained at each scale, and an envelope is about the best of them.
        best = large.filter(pl.col("scale") == scale).sort("error").row(0, named=True)
        said = float(envelope.predict_run(best["gmacs"], best["samples"]).value[0])
        print(
            f"L/14 {scale}: best {100 * (1 - best['error']):.1f} %, predicted "
            f"{100 * (1 - said):.1f} %"
        )
        checks.append(
            Check(
                f"2 L/14 held out, error in points of top-1 accuracy at {scale}",
                100 * abs(said - best["error"]),
                bar,
                "lower",
            )
        )
    starved = large.filter((pl.col("pool") == "LAION-80M") & (pl.col("scale") == "34B")).row(
        0, named=True
    )
    forecast = 100 * (
        1 - float(envelope.predict_run(starved["gmacs"], starved["samples"]).value[0])
    )
    excess = float(envelope.excess(starved["total_gmacs"], starved["error"])[0])
    short = bottleneck(laws.fit(contrastive(), _columns(small), "error", delta=math.inf), starved)
    print(
        f"L/14 on 80M at 34B: {100 * (1 - starved['error']):.1f} % measured, {forecast:.1f} % "
        f"forecast, {math.exp(excess):.2f} x the error"
    )
    print(
        "  short of",
        {
            name: f"{share.value:.2f} [{share.low:.2f}, {share.high:.2f}]"
            for name, share in short.shares.items()
        },
    )
    _tell_all(laion)
    return [
        *checks,
        Check(
            "2 L/14 on 80M, points between its forecast and the 75.2 of the reference",
            abs(forecast - 75.2),
            0.1,
            "lower",
        ),
        Check(
            "2 L/14 on 80M, low end of the 80 % interval of the share of data",
            short.shares["data"].low,
            0.5,
            "higher",
        ),
    ]


def _tell_all(laion: pl.DataFrame) -> None:
    """Print which of the 27 runs are short of data."""
    fit = laws.fit(contrastive(), _columns(laion), "error", delta=math.inf)
    limits = [bottleneck(fit, row).limiting for row in laion.to_dicts()]
    starved = [
        f"{row['arch']} {row['pool']} {row['scale']}"
        for row, limit in zip(laion.to_dicts(), limits, strict=True)
        if limit == "data"
    ]
    print(
        f"joint law on all 27: rms {np.sqrt(np.mean(fit.residuals**2)):.3f} of log error; short "
        f"of data: {', '.join(starved)}"
    )
