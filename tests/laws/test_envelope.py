import itertools
import json
import math

import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.decisions.envelope import fit_envelope
from steelyard.laws.decisions.sources import compare_sources
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.contrastive import bottleneck, contrastive, contrastive_gmacs

# zero-shot ImageNet top-1 of Cherti et al. 2023 (arXiv 2212.07143), results of its repository: GMAC
# in total, accuracy
LAION = np.array(
    [
        (18.944e9, 0.51938),
        (94.720e9, 0.56464),
        (253.377e9, 0.56432),
        (52.659e9, 0.57554),
        (268.234e9, 0.6024),
        (704.320e9, 0.61276),
        (224.590e9, 0.61144),
        (1144.005e9, 0.6396),
        (3003.891e9, 0.64828),
        (18.086e9, 0.5712),
        (97.798e9, 0.63228),
        (253.198e9, 0.64062),
        (50.273e9, 0.62684),
        (268.122e9, 0.67002),
        (703.821e9, 0.69),
        (214.411e9, 0.69306),
        (1159.440e9, 0.73056),
        (3001.760e9, 0.7394),
        (18.944e9, 0.57358),
        (96.200e9, 0.62526),
        (256.968e9, 0.66474),
        (52.659e9, 0.61822),
        (268.122e9, 0.68134),
        (703.821e9, 0.70222),
        (224.589e9, 0.68928),
        (1122.944e9, 0.73096),
        (2807.360e9, 0.75202),
    ]
)
OPENAI = np.array([(94.720e9, 0.63334), (263.296e9, 0.68352), (1122.944e9, 0.7549)])


def runs(table):
    return {"total_gmacs": table[:, 0], "error": 1 - table[:, 1]}


def by_hand(x, y, bins=5):
    """Bin, take minima and fit a line the way one would in a notebook."""
    edges = np.linspace(x.min(), x.max() + 0.1, bins + 1)
    points = []
    for low, high in itertools.pairwise(edges):
        inside = y[(x >= low) & (x < high)]
        if len(inside):
            points.append(((low + high) / 2, inside.min()))
    return np.polyfit(*np.array(points).T, 1)


def test_published_points_give_the_published_exponents():
    envelope = fit_envelope(runs(LAION))
    slope, offset = by_hand(np.log10(LAION[:, 0]), np.log10(1 - LAION[:, 1]))
    assert envelope.exponent().value == pytest.approx(slope, abs=1e-9)
    assert envelope.fit.params["A"] == pytest.approx(10**offset, rel=1e-9)
    assert envelope.exponent().value == pytest.approx(-0.1057, abs=1e-4)  # card: E = 4.98 C^-.1057
    assert envelope.fit.params["A"] == pytest.approx(4.98, rel=0.002)
    assert fit_envelope(runs(OPENAI), stat="line").exponent().value == pytest.approx(
        -0.164, abs=1e-3
    )


def test_the_best_run_of_each_bin_is_kept():
    envelope = fit_envelope(runs(LAION), bootstrap=Bootstrap(count=0))
    assert (
        sorted(LAION[envelope.rows, 1]) == sorted({0.62684, 0.63228, 0.69306, 0.73096, 0.75202})
        and envelope.num_runs == 27
    )
    assert envelope.exponent().low == envelope.exponent().value


def test_all_runs_give_a_flatter_line_than_the_envelope():
    powers = {
        stat: fit_envelope(runs(LAION), stat=stat, bootstrap=Bootstrap(count=0)).exponent().value
        for stat in ("min", "quantile", "expectile", "line")
    }
    assert powers["line"] == pytest.approx(
        np.polyfit(np.log(LAION[:, 0]), np.log(1 - LAION[:, 1]), 1)[0], abs=1e-9
    )
    assert max(powers["min"], powers["quantile"], powers["expectile"]) < powers["line"] - 0.01


def test_expectile_minimizes_the_asymmetric_squares():
    envelope = fit_envelope(runs(LAION), stat="expectile", share=0.2, bootstrap=Bootstrap(count=0))
    x, y = np.log(LAION[:, 0]), np.log(1 - LAION[:, 1])

    def cost(offset, slope):
        residual = y - offset - slope * x
        return np.where(residual > 0, 0.2, 0.8) @ residual**2

    offset, slope = math.log(envelope.fit.params["A"]), envelope.exponent().value
    others = [
        cost(offset + 1e-4 * a, slope + 1e-5 * b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b
    ]
    assert cost(offset, slope) < min(others)


def test_a_minimum_may_keep_its_own_compute():
    center, point = (
        fit_envelope(runs(LAION), at=at, bootstrap=Bootstrap(count=0)).exponent().value
        for at in ("center", "point")
    )
    assert point == pytest.approx(-0.10674, abs=1e-4) and point != center
    with pytest.raises(FitError, match="only minima"):
        fit_envelope(runs(LAION), stat="quantile", at="point")


def test_predictions_of_unseen_runs_go_through_total_compute():
    small = LAION[[*range(6), *range(9, 15), *range(18, 24)]]
    envelope = fit_envelope(runs(small))
    said = envelope.predict_run(87.73, 32e9)
    assert 1 - said.value[0] == pytest.approx(0.7503, abs=2e-4)  # measured .752
    assert said.low < 1 - 0.75202 < said.high
    assert envelope.excess(3003.891e9, 1 - 0.64828) == pytest.approx(
        [math.log((1 - 0.64828) / (1 - 0.7522))], abs=1e-3
    )
    with pytest.raises(FitError):
        envelope.predict(1e16)
    assert envelope.predict(1e16, extrapolate=True).value < said.value


def test_envelope_recovers_a_known_law_under_starved_runs():
    generator = np.random.default_rng(3)
    compute = 10 ** generator.uniform(8, 12, 300)
    starved = generator.random(300) < 0.6
    error = (
        8
        * compute**-0.12
        * np.exp(
            np.where(
                starved,
                generator.exponential(0.4, 300),
                0.01 * np.abs(generator.standard_normal(300)),
            )
        )
    )
    found = fit_envelope({"total_gmacs": compute}, np.minimum(error, 0.99), bins=10).exponent(0.9)
    assert found.low < -0.12 < found.high and found.high - found.low < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(("num_runs", "starved"), [(27, 0.33), (60, 0.5), (200, 0.5)])
def test_intervals_hold_the_true_exponent(num_runs, starved):
    hits = []
    for seed in range(120):
        generator = np.random.default_rng(seed)
        compute = 10 ** generator.uniform(9, 12.5, num_runs)
        excess = np.where(
            generator.random(num_runs) < starved, generator.exponential(0.25, num_runs), 0.0
        )
        error = (
            0.95
            * (compute / 1e9) ** -0.11
            * np.exp(excess + 0.02 * generator.standard_normal(num_runs))
        )
        found = fit_envelope(
            {"total_gmacs": compute},
            np.minimum(error, 0.999),
            at="point",
            bootstrap=Bootstrap(count=120),
        ).exponent(0.9)
        hits.append(found.low <= -0.11 <= found.high)
    assert 0.8 <= np.mean(hits) <= 0.97


def test_fit_of_an_envelope_is_kept_as_json():
    envelope = fit_envelope(
        {"gmacs": [7.4, 7.4, 20.57, 20.57], "samples": [2e9, 3e10, 2e9, 3e10]},
        [0.5, 0.4, 0.45, 0.35],
        stat="line",
    )
    assert envelope.fit.resampling == "noise"
    again = laws.Fit.from_json(envelope.fit.to_json())
    assert (
        again.params == envelope.fit.params
        and json.loads(envelope.fit.to_json())["law"] == "power_law:total_gmacs:nofloor"
    )


def test_too_few_bins_fall_back_to_a_line_with_a_warning():
    compute = np.array([1e9, 1.01e9, 1.02e9, 1e12])
    with pytest.warns(SteelyardWarning, match="2 of 5 compute bins"):
        envelope = fit_envelope({"total_gmacs": compute}, [0.5, 0.52, 0.48, 0.2])
    assert envelope.stat == "line" and not len(envelope.rows)


@pytest.mark.parametrize(
    ("points", "errors", "words"),
    [
        ({"total_gmacs": [1e9, 1e10, 1e11]}, [0.5, 0.0, 0.2], "rows 2 .0. are not"),
        ({"total_gmacs": [1e9, 1e10, 1e11]}, [1.0, 0.3, float("nan")], "rows 1 .1., 3 .nan."),
        (
            {"total_gmacs": [1e9, float("nan"), 1e11]},
            [0.5, 0.3, 0.2],
            "compute must be known and positive; rows 2",
        ),
        ({"samples": [1e9, 1e10, 1e11]}, [0.5, 0.3, 0.2], "no compute among the columns samples"),
        (
            {"total_gmacs": [1e9, 1e10, 1e11], "metric": ["acc1", "acc1", "recall"]},
            [0.5, 0.3, 0.2],
            "mixed metrics acc1, recall",
        ),
        ({"total_gmacs": [1e9, 1e9, 1e9]}, [0.5, 0.3, 0.2], "all runs took 1e.09 GMAC"),
        ({"total_gmacs": [1e9, 1e10]}, [0.5, 0.3], "at least three runs"),
        ({"total_gmacs": [1e9, 1e10, 1e11]}, "loss", "no column 'loss'"),
    ],
)
def test_bad_runs_are_refused_by_row(points, errors, words):
    with pytest.raises(FitError, match=words):
        fit_envelope(points, errors)


def test_sources_with_other_slopes_are_told_apart_and_cross():
    generator = np.random.default_rng(1)
    compute = np.tile(10 ** np.linspace(9, 12, 20), 2)
    labels = np.repeat(["one", "two"], 20)
    error = np.where(labels == "one", 3 * compute**-0.1, 30 * compute**-0.2) * np.exp(
        0.01 * generator.standard_normal(40)
    )
    found = compare_sources(
        {"total_gmacs": compute, "pool": labels}, error, by="pool", bootstrap=Bootstrap(count=200)
    )
    (pair,) = found.pairs
    assert (
        pair.do_differ
        and pair.scale == "two"
        and pair.difference.value == pytest.approx(0.1, abs=0.01)
    )
    assert pair.crossing_gmacs.low < 1e10 < pair.crossing_gmacs.high < 2e10
    assert {name: envelope.stat for name, envelope in found.envelopes.items()} == {
        "one": "min",
        "two": "min",
    }


def test_published_sources_differ_only_where_the_runs_say_so():
    table = np.concatenate([LAION, OPENAI])
    labels = ["LAION"] * 27 + ["OpenAI"] * 3
    (pair,) = compare_sources(runs(table), by=labels, bootstrap=Bootstrap(count=300)).pairs
    assert pair.difference.value == pytest.approx(0.058, abs=1e-3)
    assert not pair.do_differ and pair.scale == "" and pair.crossing_gmacs.high == math.inf
    with pytest.raises(FitError, match="1 sources"):
        compare_sources(runs(LAION), by=["LAION"] * 27)
    with pytest.raises(FitError, match="no column 'pool'"):
        compare_sources(runs(LAION), by="pool")


def joint_points():
    sizes, data, seen = (
        grid.ravel()
        for grid in np.meshgrid([7.4, 20.57, 87.73], [8e7, 4e8, 2e9], [2.5e9, 1.3e10, 3.4e10])
    )
    error = 0.05 + 0.38 * sizes**-0.2 + 3.3e3 * data**-0.55 + 198 * seen**-0.35
    noisy = error * np.exp(0.005 * np.random.default_rng(0).standard_normal(27))
    return {"gmacs": sizes, "unique_samples": data, "samples": seen, "error": noisy}


def test_joint_law_names_what_a_run_is_short_of():
    fit = laws.fit(
        contrastive(), joint_points(), "error", delta=math.inf, bootstrap=laws.Bootstrap(count=100)
    )
    starved = bottleneck(fit, {"gmacs": 87.73, "unique_samples": 8e7, "samples": 3.4e10})
    parts = np.array(
        [0.2 * 0.38 * 87.73**-0.2, 0.55 * 3.3e3 * 8e7**-0.55, 0.35 * 198 * 3.4e10**-0.35]
    )
    truth = dict(zip(("model", "data", "samples"), parts / parts.sum(), strict=True))
    assert starved.limiting == "data" and starved.confidence == 1.0
    assert sum(share.value for share in starved.shares.values()) == pytest.approx(1)
    for name, share in starved.shares.items():
        assert (
            share.value == pytest.approx(truth[name], abs=0.08)
            and share.low <= share.value <= share.high
        )
    doubled = fit.predict({"gmacs": 87.73, "unique_samples": 1.6e8, "samples": 3.4e10}).value[0]
    assert starved.gains["data"].value == pytest.approx(1 - doubled / starved.error, rel=1e-9)
    assert (
        bottleneck(fit, {"gmacs": 7.4, "unique_samples": 2e9, "samples": 3.4e10}).limiting
        == "model"
    )
    with pytest.raises(FitError, match="does not tell"):
        bottleneck(laws.published["besiroglu2024"].fit(), {})


@pytest.mark.parametrize(
    ("published", "sizes"),  # GMAC of arch_info.csv in the repository of the paper
    [
        (7.40, (224, 32, 768, 12, 512, 12)),
        (20.57, (224, 16, 768, 12, 512, 12)),
        (87.73, (224, 14, 1024, 24, 768, 12)),
        (190.97, (224, 14, 1280, 32, 1024, 24)),
    ],
)
def test_compute_per_sample_follows_from_the_architecture(published, sizes):
    names = ("image_size", "patch_size", "image_width", "image_layers", "text_width", "text_layers")
    assert contrastive_gmacs(**dict(zip(names, sizes, strict=True))) == pytest.approx(
        published, rel=0.003
    )


def test_towers_must_fit_their_patches():
    with pytest.raises(FitError, match="divide"):
        contrastive_gmacs(
            image_size=224,
            patch_size=15,
            image_width=768,
            image_layers=12,
            text_width=512,
            text_layers=12,
        )
