"""Levels by name, flows exact both ways, the cascade, and joint forecasts of series on levels."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from steelyard.cli.main import main
from steelyard.errors import ConfigError, TraceError
from steelyard.operate.forecast import Levels, RecentQuantiles, SampleForecast, evaluate
from steelyard.operate.forecast.bounds import LEVELS
from steelyard.operate.forecast.networks.cascade import cascade
from steelyard.operate.forecast.networks.heads import head_loss, head_quantiles, head_width
from steelyard.operate.forecast.networks.hierarchical import (
    HierarchicalFlowForecaster,
    cascade_config,
)
from steelyard.operate.forecast.networks.joint_windows import JointWindows, time_marks
from steelyard.operate.forecast.networks.real_nvp import RealNVP
from steelyard.operate.forecast.networks.spline import SPLINE_WIDTH, bend, unbend
from steelyard.operate.forecast.together import ChosenTogether
from steelyard.operate.series import SeriesSet

SITES = Levels.of("all = east + west")


def sites(steps=500, seed=0, rest=0.0):
    """One of two sites serves a load; which one changes at random."""
    rng = np.random.default_rng(seed)
    load = 100 + 20 * np.sin(2 * np.pi * np.arange(steps) / 144) + rng.normal(size=steps)
    share = np.where(rng.uniform(size=steps) < 0.5, 0.8, 0.2)
    rows = [load * (1 + rest), load * share, load * (1 - share)]
    return SeriesSet.from_arrays(rows, step_s=600, ids=["all", "east", "west"])


def reordered(series, order):
    return series.cut(order, [0] * len(order), series.lengths[order])


def small(horizon=1, *, flow=True):
    config = cascade_config(horizon, context_steps=24, flow=flow)
    return replace(config, hidden_size=16, num_layers=1)


def test_levels_are_read_from_words():
    found = Levels.of("load > cpu, memory > latency")
    assert found.level == {"load": 1, "cpu": 2, "memory": 2, "latency": 3} and found.count == 3
    assert SITES.level == {"all": 1, "east": 2, "west": 2}
    assert SITES.sums == {"all": ("east", "west")}
    nested = Levels.of("all = east + west", "east = a + b", "west > latency")
    assert nested.level["a"] == 3 and nested.level["latency"] == 3
    assert nested.names == ("all", "east", "west", "a", "b", "latency")


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (("a > b", "b > a"), "circle"),
        (("all = east",), "has the parts east"),
        (("a > ",), "empty name"),
        (("all = a + b", "all = c + d"), "no new total"),
        (("a",), "1 series on levels"),
        (("all = a + a",), "has the parts a, a"),
    ],
)
def test_levels_that_make_no_sense_are_refused(rules, words):
    with pytest.raises(ConfigError, match=words):
        Levels.of(*rules)


def test_levels_by_number_are_checked():
    with pytest.raises(ConfigError, match="on levels \\[1, 3\\]"):
        Levels(level={"a": 1, "b": 3})
    with pytest.raises(ConfigError, match="not on a level below"):
        Levels(level={"all": 1, "a": 1, "b": 2}, sums={"all": ("a", "b")})
    with pytest.raises(ConfigError, match="'c' of a sum has no level"):
        Levels(level={"all": 1, "a": 2}, sums={"all": ("a", "c")})


def test_series_that_do_not_fit_the_levels_are_refused():
    series = sites()
    with pytest.raises(TraceError, match="series 'west' has no level"):
        Levels.of("all > east").check(series)
    with pytest.raises(TraceError, match="no series 'north'"):
        Levels.of("all = east + west + north").check(series)
    rows = [row.copy() for row in series]
    rows[0][7] -= 5
    less = SeriesSet.from_arrays(rows, step_s=600, ids=series.ids, provenance="sites.csv")
    with pytest.raises(TraceError, match=r"'all' is .* at value 8, less than .*sites.csv"):
        SITES.check(less)
    later = SeriesSet.from_arrays(rows, step_s=600, ids=series.ids, start_s=[0, 0, 600])
    with pytest.raises(TraceError, match="do not begin, step and end together"):
        SITES.check(later)


def test_the_coupling_flow_is_exact_both_ways():
    torch.manual_seed(0)
    flow = RealNVP(6, 16, 4).double()
    base, context = torch.randn(5, 6).double(), torch.randn(5, 4).double()
    made, grown = flow(base, context)
    torch.testing.assert_close(made, base)  # untrained, it changes nothing
    for part in flow.parameters():
        torch.nn.init.normal_(part, 0, 0.4)
    made, grown = flow(base, context)
    back, shrunk = flow.inverse(made, context)
    torch.testing.assert_close(back, base, atol=1e-9, rtol=0)
    torch.testing.assert_close(grown, -shrunk)
    slopes = torch.autograd.functional.jacobian(lambda x: flow(x[None], context[:1])[0][0], base[0])
    torch.testing.assert_close(torch.linalg.slogdet(slopes)[1], grown[0])  # pyright: ignore


def test_the_spline_is_exact_both_ways():
    generator = torch.Generator().manual_seed(0)
    numbers = 2 * torch.randn(400, SPLINE_WIDTH, generator=generator, dtype=torch.double)
    base = torch.linspace(-6, 6, 400, dtype=torch.double).requires_grad_()
    made = bend(base, numbers)
    back, slopes = unbend(made, numbers)
    torch.testing.assert_close(back, base, atol=1e-9, rtol=0)
    (grown,) = torch.autograd.grad(made.sum(), base)
    torch.testing.assert_close(grown.log(), -slopes, atol=1e-9, rtol=0)
    torch.testing.assert_close(bend(base, 0 * numbers), base, atol=1e-4, rtol=0)


def test_quantiles_of_the_flow_head_are_those_of_its_density():
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(1, 1, head_width("flow"), generator=generator)
    grid = torch.linspace(-12, 12, 200_001, dtype=torch.double)
    spread = outputs.double().expand(1, len(grid), -1)
    density = (-head_loss("flow", spread, grid[None])).exp()[0]
    below = torch.cumulative_trapezoid(density, grid)
    assert below[-1].item() == pytest.approx(1, abs=1e-4)
    found = grid[1:][torch.searchsorted(below, torch.tensor(LEVELS))]
    torch.testing.assert_close(head_quantiles("flow", outputs)[0, 0], found, atol=1e-3, rtol=0)


def test_a_cascade_goes_down_only_and_one_level_is_plain_attention():
    levels = torch.tensor([1, 1, 2, 3])
    heads = [torch.randn(1, 4, 2, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    whole = cascade(levels)(0, *heads)
    lower = [part.clone() for part in heads]
    for part in lower:
        part[:, 3] += 1
    moved = cascade(levels)(0, *lower)
    torch.testing.assert_close(moved[:, :3], whole[:, :3])
    for part in lower:
        part[:, 0] += 1
    # What changes on the first level reaches the third through the second.
    assert (cascade(levels)(0, *lower)[:, 2:] - moved[:, 2:]).abs().min() > 0
    flat = cascade(torch.ones(4, dtype=torch.int64))(0, *heads)
    query, key, value = (part.transpose(1, 2) for part in heads)
    plain = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    torch.testing.assert_close(flat, plain)


def test_windows_to_learn_from_have_no_hole_ahead():
    table = np.arange(300.0).reshape(2, 150)
    table[0, 100:103] = np.nan
    windows = JointWindows(table, time_marks(0.0, 600.0, 150), (24, 4, 8), seed=0)
    ends = set()
    for index in range(40):
        past, marks, target = windows.batch(index)
        assert past.shape == (8, 2, 24) and marks.shape == (8, 4, 24) and target.shape == (8, 2, 4)
        assert target.isfinite().all()
        torch.testing.assert_close(past, windows.batch(index)[0], equal_nan=True)
        ends |= {int(item) for item in target[:, 1, 0] - 150}
        # The past ends where the target begins; a hole is the value before it.
        torch.testing.assert_close(past[:, 1, -1] + 1, target[:, 1, 0])
    assert not ends & set(range(97, 103)) and {12, 146} & ends
    with pytest.raises(TraceError, match="no window of 12 steps and 4"):
        JointWindows(table[:, :15], time_marks(0.0, 600.0, 15), (24, 4, 8), seed=0)


@pytest.fixture(scope="module")
def fitted():
    made = HierarchicalFlowForecaster(SITES, small(), steps=80)
    made.fit(sites().before(100))
    return made


def test_the_flow_learns_a_law_of_two_modes(fitted):
    series = sites()
    gaussian = HierarchicalFlowForecaster(SITES, small(flow=False), steps=80)
    gaussian.fit(series.before(100))
    assert fitted.nats(series, 100) < gaussian.nats(series, 100) - 0.1
    ours, rule = (evaluate(item, series, 1, 100, 1) for item in (fitted, RecentQuantiles()))
    assert ours.series["all"].crps < rule.series["all"].crps


def test_totals_are_the_sums_of_their_parts_in_every_sample(fitted):
    made = fitted.joint(sites(), 3)
    assert made.values.shape == (400, 3, 3) and made.names == ("all", "east", "west")
    np.testing.assert_allclose(made.values[..., 0], made.values[..., 1:].sum(-1))
    np.testing.assert_array_equal(made.values[:, 2], made.values[:, 1])  # beyond its horizon
    series = sites(rest=0.1)
    more = HierarchicalFlowForecaster(SITES, small(), steps=30)
    more.fit(series)
    assert more.forecast_names == ("east", "west", "rest of all")
    values = more.joint(series, 2).values
    rest = values[..., 0] - values[..., 1:].sum(-1)
    assert (rest > 0).all() and 5 < rest.mean() < 15


def test_columns_are_told_apart_by_name_alone(fitted):
    series, order = sites(), [2, 0, 1]
    other = HierarchicalFlowForecaster(SITES, small(), steps=80)
    other.fit(reordered(series, order).before(100))
    found = other.predict(reordered(series, order), 2)
    for row, place in enumerate(order):
        np.testing.assert_array_equal(found[row].values, fitted.predict(series, 2)[place].values)


def test_windows_of_other_times_do_not_change_a_forecast(fitted):
    series = sites()
    alone = fitted.predict(series.before(10), 2)
    rows = [0, 1, 2] * 2
    ends = [480, 480, 480, 490, 490, 490]
    both = fitted.predict(series.cut(rows, [0] * 6, ends), 2)
    for row in range(3):
        np.testing.assert_allclose(both[3 + row].values, alone[row].values, rtol=1e-4)
    with pytest.raises(TraceError, match="'west' is missing from a window"):
        fitted.predict(reordered(series, [0, 1]), 2)
    with pytest.raises(TraceError, match="has learned nothing"):
        HierarchicalFlowForecaster(SITES).predict(series, 2)


@pytest.mark.parametrize("size", [1e-290, 1e290])
def test_no_size_of_values_makes_a_forecast_explode(fitted, size):
    series = sites()
    scaled = SeriesSet.from_arrays([row * size for row in series], step_s=600, ids=series.ids)
    for plain, other in zip(fitted.predict(series, 2), fitted.predict(scaled, 2), strict=True):
        np.testing.assert_allclose(other.values / size, plain.values, rtol=1e-3)
    flat = SeriesSet.from_arrays([[2.0] * 30, [1.0] * 30, [1.0] * 30], step_s=600, ids=series.ids)
    made = fitted.joint(flat, 2).values
    np.testing.assert_array_equal(made, np.broadcast_to([2.0, 1.0, 1.0], made.shape))


def test_a_joint_model_is_used_for_all_series_or_for_none():
    class Wrong(RecentQuantiles):
        def predict(self, context, horizon):
            made = super().predict(context, horizon)
            return [item.replaced(values=item.values + 1e6) for item in made]

    class Oracle(RecentQuantiles):
        def predict(self, context, horizon):
            made = []
            for row, name in enumerate(context.ids):
                whole = series.row(series.index(name.split("@")[0]))
                begin = min(len(context.row(row)), len(whole) - horizon)
                samples = np.repeat(whole[None, begin : begin + horizon], 3, axis=0)
                made.append(SampleForecast(samples, None, self.name, name))
            return made

    series = sites()
    for kind, is_used in ((Wrong, False), (Oracle, True)):
        model = kind()
        model.name = kind.__name__
        chosen = ChosenTogether(model, horizon=1, windows=100)
        chosen.fit(series)
        used = {choice.used == model.name for choice in chosen.choices.values()}
        assert used == {is_used} and chosen.windows == 100
        made = chosen.predict(series, 1)
        assert [item.item_id for item in made] == list(series.ids)
    short = series.cut([0, 1, 2], [0] * 3, [1] * 3)
    chosen.fit(short)
    assert chosen.windows == 0
    assert {choice.used for choice in chosen.choices.values()} == {"RecentQuantiles"}


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(["operate", "forecast", *words])
    return ended.value.code


def test_the_command_forecasts_a_table_on_levels(tmp_path, capsys):
    path, rows = tmp_path / "sites.csv", sites(200)
    lines = [
        f"{1_700_000_000 + 600 * step},{','.join(f'{row[step]:.6f}' for row in rows)}"
        for step in range(200)
    ]
    path.write_text("timestamp,all,east,west\n" + "\n".join(lines) + "\n")
    words = [str(path), "--horizon", "4", "--no-keep", "--json", "--levels"]
    assert run(*words, "all = east + west", "--windows", "4") == 0
    found = json.loads(capsys.readouterr().out)
    assert [item["id"] for item in found["series"]] == ["all", "east", "west"]
    models = {item["choice"]["model"] for item in found["series"]}
    assert models == {"HierarchicalFlow"} and found["windows"] == 4
    assert run(*words, "all > east") != 0
    assert "series 'west' has no level" in capsys.readouterr().err
    assert run(*words, "all = east + west", "--windows", "0") != 0
    assert "--windows 0" in capsys.readouterr().err
