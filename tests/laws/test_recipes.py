"""Recipes compared at a size: paired draws narrow differences, chances mean what they say."""

import json

import numpy as np
import pytest

from steelyard import laws
from steelyard.cli.main import main
from steelyard.errors import FitError
from steelyard.laws.decisions.paired_draws import pair_keys
from steelyard.laws.decisions.recipes import compare_recipes
from steelyard.laws.fitting.bootstrap import Bootstrap

FAR = {"parameters": 1e9, "tokens": 1e11}
FEW = Bootstrap(count=60)


def _loss(size, tokens, factor):
    return 1.8 + 400 * factor / size**0.34 + 400 / tokens**0.3


def _runs(seed, *, shared=0.0, noise=0.003, factor=1.2, kinds=("a", "b")):
    """Draw runs of recipes of which the second needs a larger model by a factor."""
    generator = np.random.default_rng(seed)
    size, tokens = (
        column.ravel()
        for column in np.meshgrid(np.geomspace(1e7, 3e8, 5), np.geomspace(1e9, 3e10, 4))
    )
    common = shared * generator.standard_normal(len(size))
    parts = [
        _loss(size, tokens, factor if kind == "b" else 1.0)
        * np.exp(common + noise * generator.standard_normal(len(size)))
        for kind in kinds
    ]
    return {
        "parameters": np.tile(size, len(kinds)),
        "tokens": np.tile(tokens, len(kinds)),
        "loss": np.concatenate(parts),
        "recipe": np.repeat(kinds, len(size)),
    }


def test_the_better_recipe_is_named_and_what_is_shared_cancels():
    found = compare_recipes(_runs(0, factor=1.5), by="recipe", at=FAR)
    best, second = found.recipes
    assert (best.name, second.name) == ("a", "b") and best.beats["b"] > 0.9
    assert best.behind.value == best.behind.low == best.behind.high == 0.0
    assert best.chance_best + second.chance_best == pytest.approx(1.0)
    assert second.beats["a"] == pytest.approx(1 - best.beats["b"])
    true = _loss(1e9, 1e11, 1.5) / _loss(1e9, 1e11, 1.0) - 1
    assert second.behind.value == pytest.approx(true, abs=0.03)
    assert "a beats b with" in found.verdict and best.shared == second.shared == 1.0
    # A chance that both recipes share says nothing about their difference.
    shaken = compare_recipes(_runs(0, shared=0.02, factor=1.5), by="recipe", at=FAR).recipes[1]
    assert shaken.behind.high - shaken.behind.low < 2 * (second.behind.high - second.behind.low)
    assert shaken.value.high - shaken.value.low > 1.2 * (second.value.high - second.value.low)


@pytest.mark.slow
def test_intervals_of_the_difference_hold_the_truth():
    true = _loss(1e9, 1e11, 1.2) / _loss(1e9, 1e11, 1.0) - 1
    held = []
    for seed in range(40):
        points = _runs(seed, shared=0.005 * (seed % 2), noise=0.005)
        found = compare_recipes(points, by="recipe", at=FAR, bootstrap=FEW).recipes[1].behind
        held.append(found.low <= true <= found.high)
    assert 0.75 <= np.mean(held) <= 1.0


@pytest.mark.slow
def test_equal_recipes_win_half_of_the_time():
    chances = [
        {item.name: item for item in found.recipes}["a"].beats["b"]
        for found in (
            compare_recipes(_runs(seed, factor=1.0), by="recipe", at=FAR, bootstrap=FEW)
            for seed in range(30)
        )
    ]
    assert 0.35 < np.mean(chances) < 0.65 and max(chances) > 0.5 > min(chances)


def test_three_recipes_sum_to_one_and_rows_of_one_size_pair_in_order():
    found = compare_recipes(_runs(1, kinds=("a", "b", "c")), by="recipe", at=FAR, bootstrap=FEW)
    assert sum(item.chance_best for item in found.recipes) == pytest.approx(1.0)
    assert {item.name for item in found.recipes[:2]} == {"a", "c"}
    assert set(found.recipes[0].beats) == {item.name for item in found.recipes[1:]}
    first = {"parameters": [1e7, 1e7, 2e7], "tokens": [1e9, 1e9, 1e9]}
    second = {"parameters": [2e7, 1e7, 1e7], "tokens": [1e9, 1.0001e9, 1e9]}
    mine, others = pair_keys([first, second], ("parameters", "tokens"))
    assert others.tolist() == [mine[2], mine[0], mine[1]]
    seeded = pair_keys([first | {"seed": [0, 1, 0]}, second | {"seed": [0, 1, 0]}], ("parameters",))
    assert seeded[1].tolist() == [seeded[0][2], seeded[0][1], seeded[0][0]]


def test_what_cannot_be_compared_is_refused():
    points = _runs(0)
    with pytest.raises(FitError, match="names one recipe"):
        compare_recipes(points | {"recipe": np.full(40, "a")}, by="recipe", at=FAR)
    few = {name: column[:23] for name, column in points.items()}
    with pytest.raises(FitError, match="recipe b: 3 points cannot fit"):
        compare_recipes(few, by="recipe", at=FAR)
    with pytest.raises(FitError, match="20 draws"):
        compare_recipes(points, by="recipe", at=FAR, bootstrap=Bootstrap(count=20))
    with pytest.raises(FitError, match="no column 'kind'"):
        compare_recipes(points, by="kind", at=FAR)


def test_the_verb(tmp_path, capsys):
    points = _runs(0)
    path = tmp_path / "runs.csv"
    rows = zip(*(column.tolist() for column in points.values()), strict=True)
    path.write_text(",".join(points) + "\n" + "\n".join(",".join(map(str, row)) for row in rows))

    def call(*words, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["laws", "compare", str(path), "--by", "recipe", *words])
        assert (stop.value.code or 0) == code
        return capsys.readouterr()

    at = ("--at", "parameters=1B", "tokens=100B")
    assert "a beats b with" in call(*at).out
    found = json.loads(call(*at, "--json").out)
    assert found["recipes"][0]["name"] == "a" and found["recipes"][0]["beats"]["b"] > 0.5
    assert json.loads(call(*at, "--law", "chinchilla", "--json").out)["law"] == "chinchilla"
    assert "at a size" in call(code=2).err
    assert laws.RunTable.read(path).words["recipe"][0] == "a"
