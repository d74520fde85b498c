import itertools
import json
import warnings
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import laws
from steelyard.errors import DataError, FitError, SteelyardWarning
from steelyard.laws.pictures.charts import fit_chart
from steelyard.laws.pictures.diagnostics import compare_chart, profile_chart, residual_chart
from steelyard.laws.pictures.growth_chart import growth_chart
from steelyard.laws.pictures.isoflop_chart import isoflop_chart
from steelyard.laws.pictures.report import fit_report
from steelyard.laws.pictures.series import formula_words, split
from steelyard.runs import html
from steelyard.runs.axes import Scale, tick_text
from steelyard.runs.drawing import chart_svg
from steelyard.runs.layers import spread
from steelyard.runs.report import Chart, Report
from steelyard.runs.save import save_chart
from steelyard.runs.theme import SERIES, colour_map, ordered_colours

SIZES = np.array([1e7, 3e7, 1e8, 3e8])


def _points(noise=0.003, seed=0):
    generator = np.random.default_rng(seed)
    sizes, tokens = (column.ravel() for column in np.meshgrid(SIZES, np.geomspace(2e8, 2e10, 6)))
    law = laws.chinchilla()
    truth = law.coordinates(laws.published["besiroglu2024"].params)
    inputs = {"parameters": sizes, "tokens": tokens}
    return inputs, np.exp(
        law.predict(truth[None], inputs)[0] + noise * generator.standard_normal(len(sizes))
    )


@pytest.fixture(scope="module")
def fitted():
    inputs, loss = _points()
    return laws.fit(laws.chinchilla(), inputs, loss, bootstrap=laws.Bootstrap(count=40))


@pytest.fixture(scope="module")
def small():
    """Two parameters and sixteen points: cheap to profile and to draw."""
    tokens = np.geomspace(1e8, 1e10, 16)
    loss = 20 * tokens**-0.1 * np.exp(0.003 * np.random.default_rng(0).standard_normal(16))
    loss[3] *= 1.1
    return laws.fit(
        laws.power_law("tokens", floor=False),
        {"tokens": tokens},
        loss,
        bootstrap=laws.Bootstrap(count=20),
    )


def _texts(spec):
    root = ElementTree.fromstring(chart_svg(spec))
    return [
        line
        for element in root.iter()
        if element.tag.endswith("text")
        for line in element.itertext()
        if line.strip()
    ]


def _rows(spec, *needed):
    """Collect the rows of a spec's data that have all the named fields."""
    return [
        row
        for rows in spec["datasets"].values()
        for row in rows
        if all(name in row for name in needed)
    ]


def test_fit_chart_shows_points_curves_and_what_lies_beyond(fitted):
    spec = fit_chart(fitted, title="My law")
    dots = _rows(spec, "measured")
    assert sorted(row["y"] for row in dots) == pytest.approx(sorted(fitted.target))
    texts = _texts(spec)
    assert {
        "My law",
        "10M",
        "30M",
        "100M",
        "300M",
        "beyond the points",
        "Training tokens",
        "Loss",
    } <= set(texts)
    assert any(text.startswith("E + A / N^α") for text in texts)
    beyond = [row for row in _rows(spec, "is_inside") if not row["is_inside"]]
    assert beyond and min(row["x"] for row in beyond) >= 2e10 - 1
    line = [row for row in _rows(spec, "is_inside") if row["series"] == 0]
    said = fitted.predict(
        {"parameters": 1e7, "tokens": [row["x"] for row in line]}, extrapolate=True
    )
    assert [row["y"] for row in line] == pytest.approx(said.value, rel=1e-9)


def test_unseen_runs_are_open_diamonds_in_the_color_of_their_curve(fitted):
    spec = fit_chart(fitted, unseen={"parameters": [3e8], "tokens": [1e11], "target": [2.2]})
    assert "open diamonds were not fitted" in " ".join(_texts(spec))
    row = next(row for row in _rows(spec, "measured") if "row" not in row)
    assert (
        row["color"] == ordered_colours(4)[-1]
        and row["y"] == pytest.approx(2.2)
        and row["x"] == 1e11
    )


def test_unseen_runs_of_another_size_have_a_dashed_curve_of_their_own(fitted):
    unseen = {"parameters": [1e9], "tokens": [1e11], "target": [2.2]}
    spec = fit_chart(fitted, unseen=unseen)
    assert "1B" in _texts(spec)
    diamond = next(row for row in _rows(spec, "measured") if "row" not in row)
    curve = [row for row in _rows(spec, "is_inside") if row["color"] == diamond["color"]]
    assert all(row["is_beyond"] for row in curve) and diamond["y"] == pytest.approx(2.2)
    said = fitted.predict({"parameters": 1e9, "tokens": 1e11}, extrapolate=True).value[0]
    assert [row["y"] for row in curve if row["x"] == 1e11] == pytest.approx([said])


def test_holdout_is_drawn_with_the_smaller_fit(fitted):
    held = fitted.holdout()
    spec = fit_chart(held)
    assert len([row for row in _rows(spec, "measured") if "row" not in row]) == len(held.measured)
    assert len(_rows(spec, "row", "measured")) == held.fit.num_points


def test_points_off_their_curve_keep_their_residual():
    generator = np.random.default_rng(3)
    inputs = {
        "parameters": 10 ** generator.uniform(7, 9, 40),
        "tokens": 10 ** generator.uniform(8.5, 11, 40),
    }
    law = laws.chinchilla()
    truth = law.coordinates(laws.published["besiroglu2024"].params)
    loss = np.exp(law.predict(truth[None], inputs)[0] + 0.01 * generator.standard_normal(40))
    fit = laws.fit(law, inputs, loss, bootstrap=laws.Bootstrap(count=0))
    chosen = split(fit)
    assert len(chosen.series) == 6 and chosen.is_moved
    for series in chosen.series:
        own = {name: column[series.rows] for name, column in inputs.items()}
        moved = chosen.on_curve(fit, own, loss[series.rows], series)
        curve = fit.predict(
            {**own, **{name: np.full(len(moved), value) for name, value in series.held.items()}}
        ).value
        assert np.log(moved / curve) == pytest.approx(fit.residuals[series.rows], abs=1e-9)
    assert "moved along the law" in " ".join(_texts(fit_chart(fit)))


def test_groups_are_colored_by_name():
    inputs, loss = _points()
    labels = np.where(inputs["parameters"] > 5e7, "large", "small")
    law = laws.power_law("tokens").grouped(("A",), ("small", "large"))
    fit = laws.fit(law, {**inputs, "group": labels}, loss, bootstrap=laws.Bootstrap(count=0))
    chosen = split(fit)
    assert chosen.by == "group" and [series.label for series in chosen.series] == ["small", "large"]
    unseen = {"tokens": [3e10], "group": ["large"], "target": [2.5]}
    spec = fit_chart(fit, unseen=unseen, until=1e9)
    assert {"small", "large"} <= set(_texts(spec))
    assert next(row for row in _rows(spec, "measured") if "row" not in row)["color"] == SERIES[1][0]


@pytest.mark.slow
def test_every_form_can_be_drawn():
    _draw([name for name in laws.FORMS if name not in ("monomial", "powers")])


def test_forms_of_one_to_three_inputs_can_be_drawn():
    _draw(["growth", "routed", "contrastive"])


def _draw(forms):
    for form in forms:
        generator = np.random.default_rng(0)
        law = laws.law_named(form)
        scales = {"year": generator.uniform(2010, 2024, 30), "loss": generator.uniform(2, 4, 30)}
        inputs = {name: scales.get(name, 10 ** generator.uniform(2, 5, 30)) for name in law.inputs}
        grid = law.start_grid()
        theta = grid[len(grid) // 2]
        target = np.exp(law.predict(theta[None], inputs)[0] + 0.01 * generator.standard_normal(30))
        samples = theta + 1e-4 * generator.standard_normal((5, len(theta)))
        fit = laws.Fit(
            law=law,
            theta=theta,
            samples=samples,
            inputs=inputs,
            target=target,
            weights=np.ones(30),
            noise=0.01,
        )
        spec = fit_chart(fit)
        json.dumps(spec, allow_nan=False)
        assert len(_rows(spec, "measured")) == 30


def test_no_data_stands_at_zero_below_the_others():
    examples = np.array([1e-10, *np.geomspace(200, 1e6, 12)])
    law = laws.law_named("rectified")
    theta = law.start_grid()[0]
    target = np.exp(law.predict(theta[None], {"examples": examples})[0])
    fit = laws.Fit(
        law=law,
        theta=theta,
        samples=np.zeros((0, len(theta))),
        inputs={"examples": examples},
        target=target,
        weights=np.ones(13),
    )
    spec = fit_chart(fit)
    assert min(row["x"] for row in _rows(spec, "measured")) == pytest.approx(20)
    assert "0" in _texts(spec)


def test_residual_chart_rings_outliers(small):
    texts = _texts(residual_chart(small))
    assert "row 4" in texts and "ringed" in " ".join(texts)


def _profile(**changes):
    values = np.geomspace(1, 100, 41)
    plain = {
        "name": "alpha",
        "value": 10.0,
        "low": 5.0,
        "high": 20.0,
        "level": 0.9,
        "values": values,
        "excess": (np.log(values / 10) / np.log(2)) ** 2,
        "parameters": np.ones((41, 1)),
        "is_flat": False,
    }
    return laws.Profile(**(plain | changes))


def test_profile_chart_says_when_a_valley_is_flat():
    flat = _profile(
        name="R_star", high=np.inf, is_flat=True, excess=np.where(np.arange(41) < 8, 2.0, 0.2)
    )
    texts = _texts(profile_chart(_profile(), flat))
    assert {"α", "R_star: flat", "10, 90 % 5 to 20", "10, 90 % 5 to ∞"} <= set(texts)
    alone = " ".join(_texts(profile_chart(flat)))
    assert "the points do not determine it" in alone
    drawn = [row["y"] for row in _rows(profile_chart(flat), "x", "y") if row["x"] > 15]
    assert max(drawn) < 1


def test_isoflop_chart_names_exponent_and_budgets():
    flops = np.repeat([1e18, 1e19, 1e20, 1e21], 7)
    best = 1e8 * (flops / 1e19) ** 0.5
    size = best * np.tile(np.geomspace(0.2, 5, 7), 4)
    loss = 2 * (flops / 1e18) ** -0.05 * np.exp(0.01 * np.log(size / best) ** 2)
    points = {"parameters": size, "flops": flops, "loss": loss}
    found = laws.isoflop(points, noise=1e-4)
    spec = isoflop_chart(found, points)
    texts = _texts(spec)
    assert "Best size grows as compute to the power 0.500" in texts
    assert {"1e18", "1e21", "Best number of parameters"} <= set(texts)
    line = [row for row in _rows(spec, "low", "high", "y") if "state" not in row]
    assert line[-1]["x"] == pytest.approx(1e22)
    assert line[-1]["y"] == pytest.approx(found.parameters(1e22).value)


def _trend(factor, seed=0):
    generator = np.random.default_rng(seed)
    year = np.sort(generator.uniform(2010, 2024, 15))
    return laws.fit_growth(
        year,
        factor ** (year - 2010) * np.exp(0.1 * generator.standard_normal(15)),
        bootstrap=laws.Bootstrap(count=0),
    )


def test_growth_chart_names_growth_and_crossing():
    trends = {"compute": _trend(2.0), "bandwidth": _trend(1.2, 1)}
    spec = growth_chart(trends, threshold=1e5, until=2030)
    labels = [text for text in _texts(spec) if text.startswith(("compute 1.9", "compute 2"))]
    assert labels and any("/ year" in text for text in _texts(spec))
    crossing = next(row for row in _rows(spec, "low", "high", "name") if row["name"] == "compute")
    assert crossing["low"] < crossing["x"] < crossing["high"]
    relative = growth_chart(trends, normalized=True)
    starts = {row["series"]: row["y"] for row in reversed(_rows(relative, "is_inside"))}
    assert starts == pytest.approx({0: 1.0, 1: 1.0})
    with pytest.raises(FitError, match="0 trends"):
        growth_chart({})


def test_compare_chart_puts_the_best_first(small):
    floored = laws.power_law("tokens")
    comparison = laws.compare(
        small.inputs, 2 + 1e6 * small.inputs["tokens"] ** -0.8, [small.law, floored]
    )
    spec = compare_chart(comparison)
    texts = _texts(spec)
    assert texts.index("power_law:tokens") < texts.index("power_law:tokens:nofloor")
    assert len(_rows(spec, "cut")) == 2 * len(comparison.sizes)


def test_published_sets_cannot_be_drawn():
    fit = laws.published["kaplan2020"].fit()
    for draw in (fit_chart, residual_chart, fit_report):
        with pytest.raises(FitError, match="without its points"):
            draw(fit)


def test_unknown_inputs_are_refused(fitted):
    with pytest.raises(FitError, match="cannot draw along 'width'"):
        fit_chart(fitted, along="width")
    with pytest.raises(FitError, match="cannot draw"):
        fit_chart(fitted, along="tokens", by="tokens")


def test_unseen_points_need_a_target(fitted):
    with pytest.raises(FitError, match="no column 'target' of unseen points"):
        fit_chart(fitted, unseen={"parameters": [3e8], "tokens": [1e11]})
    with pytest.raises(FitError, match="missing: tokens"):
        fit_chart(fitted, unseen={"parameters": [3e8], "target": [2.0]})


def test_save_writes_by_the_ending_of_the_name(small, tmp_path, monkeypatch):
    monkeypatch.setattr(
        html, "_runtime", lambda: ""
    )  # takes seconds to pack, and is tested with the reports
    spec = residual_chart(small)
    for name, start in (
        ("a.svg", b"<svg"),
        ("a.png", b"\x89PNG"),
        ("a.html", b"<!doctype html>"),
        ("a.json", b"{"),
    ):
        save_chart(spec, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(DataError, match=r"unknown ending '\.pdf'"):
        save_chart(spec, tmp_path / "a.pdf")
    assert not (tmp_path / "a.pdf").exists()


def test_colors_of_charts_have_dark_ones(fitted):
    drawn = {row["color"] for row in _rows(fit_chart(fitted), "color")}
    assert drawn <= set(colour_map())
    assert all(set(ordered_colours(count)) <= set(colour_map()) for count in range(1, 12))
    assert all(len(set(ordered_colours(count))) == count for count in range(1, 12))


def test_report_tells_parameters_freedom_points_and_extrapolation(small):
    comparison = laws.compare(small.inputs, small.target, [small.law, laws.power_law("tokens")])
    report = fit_report(small, title="My fit", comparison=comparison)
    assert [section.title for section in report.sections] == [
        "The law",
        "Parameters",
        "What the points determine",
        "The points",
        "Beyond the points",
        "How it was fitted",
    ]
    assert (
        sum(isinstance(block, Chart) for section in report.sections for block in section.blocks)
        == 5
    )
    text = report.to_json()
    assert (
        "My fit" in text
        and "Bootstrap 80 %" in text
        and "Profile 90 %" in text
        and "Outliers: 1 point" in text
    )
    assert Report.from_json(text) == report


def test_report_of_few_points_says_why_nothing_was_left_out(monkeypatch):
    monkeypatch.setattr(html, "_runtime", lambda: "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        fit = laws.fit(
            laws.power_law("tokens", floor=False),
            {"tokens": [1e8, 1e9, 1e10]},
            [4.0, 3.5, 3.1],
            bootstrap=laws.Bootstrap(count=0),
        )
    report = fit_report(fit)
    said = " ".join(getattr(block, "text", "") for block in report.sections[4].blocks)
    assert said.startswith("The largest points cannot be left out")
    plain = fit_report(fit, profiles=False, holdout=False)
    assert [column.name for column in plain.sections[1].blocks[0].columns] == [
        "Parameter",
        "Fitted",
        "Note",
    ]
    assert "<svg" in plain.to_html()


def test_report_of_growth_leaves_the_latest_years_out():
    report = fit_report(_trend(2.0), target="Compute", profiles=False)
    said = " ".join(
        getattr(block, "text", "") for section in report.sections for block in section.blocks
    )
    assert "Compute = c · g^(year − 2017)" in said
    assert "the law predicts the" in said and "Least squares" in said


def test_formulas_are_written_with_greek_letters():
    assert formula_words("E + A / N^alpha - beta * theta_1") == "E + A / N^α − β · θ_1"
    assert formula_words("alphabet metadata") == "alphabet metadata"


@settings(max_examples=200, deadline=None)
@given(low=st.floats(1e-12, 1e25), factor=st.floats(1.001, 1e12), most=st.integers(3, 10))
def test_ticks_lie_on_the_axis_and_are_few_and_different(low, factor, most):
    scale = Scale.over([low, low * factor], most_ticks=most)
    assert 1 <= len(scale.ticks) <= most + 1
    assert all(scale.low <= tick <= scale.high * (1 + 1e-9) for tick in scale.ticks)
    assert list(scale.ticks) == sorted(set(scale.ticks))
    assert scale.place(scale.value(0.3)) == pytest.approx(0.3)
    if scale.is_log:
        texts = [tick_text(tick) for tick in scale.ticks]
        assert len(set(texts)) == len(texts)


def test_ticks_are_written_as_the_field_writes_them():
    assert [tick_text(value, "token") for value in (7e6, 1.4e12, 350)] == ["7M", "1.4T", "350"]
    assert [tick_text(value, "FLOP") for value in (1e21, 3e20)] == ["1e21", "3e20"]
    assert (tick_text(2024, "year"), tick_text(-0.02, "fraction"), tick_text(4e7, "USD")) == (
        "2024",
        "−2 %",
        "$40M",
    )
    assert (tick_text(0.25), tick_text(0), tick_text(12000), tick_text(3e8)) == (
        "0.25",
        "0",
        "12,000",
        "3e8",
    )
    assert Scale.over([]).ticks and Scale.over([3.0]).low < 3 < Scale.over([3.0]).high


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.08))
def test_labels_are_moved_apart_within_the_chart(places, gap):
    moved = spread(places, gap)
    ordered = sorted(moved)
    assert all(after - before >= gap - 1e-9 for before, after in itertools.pairwise(ordered))
    assert ordered[0] >= -1e-9 and ordered[-1] <= 1 + 1e-9
    for first, own in zip(places, moved, strict=True):
        for second, other in zip(places, moved, strict=True):
            assert first >= second or own < other + 1e-12


def test_labels_with_room_stay_where_they_are():
    assert spread([0.8, 0.1, 0.5], 0.05) == pytest.approx([0.8, 0.1, 0.5])
