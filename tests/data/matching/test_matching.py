"""Columns, joins and rows that belong together, against brute force on planted tables."""

import json

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from tests.data.table.check_fold import check_fold

from steelyard.cli.data import app
from steelyard.data.matching import (
    ValueSketchFold,
    find_joins,
    find_pairs,
    fit_matches,
    match_entities,
    match_schemas,
    name_similarity,
)
from steelyard.data.matching.grams import grams_of
from steelyard.data.table import DataTable
from steelyard.errors import ConfigError, DataError

FIRST = ["anna", "bert", "carla", "dirk", "emma", "franz", "gerda", "hugo", "iris", "jan"]
LAST = ["meier", "schulz", "fischer", "weber", "wagner", "becker", "hoffmann", "koch", "bauer"]
STREETS = ["hauptstrasse", "bahnhofstrasse", "gartenweg", "schulweg", "lindenallee", "am markt"]


def people(count, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "customer_id": np.arange(count) + 1000,
            "full_name": [f"{rng.choice(FIRST)} {rng.choice(LAST)}" for _ in range(count)],
            "street": [f"{rng.choice(STREETS)} {rng.integers(1, 200)}" for _ in range(count)],
            "birth_year": rng.integers(1940, 2005, count),
        }
    )


def typo(text, rng):
    place = int(rng.integers(0, len(text)))
    return text[:place] + str(rng.choice(list("abcdefgh"))) + text[place + 1 :]


def dirty(frame, seed=1):
    """The same people under other names of columns, with typing errors and gaps, shuffled."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(frame.height)
    names = [typo(name.title(), rng) if rng.random() < 0.5 else name for name in frame["full_name"]]
    streets = [typo(text, rng) if rng.random() < 0.4 else text for text in frame["street"]]
    made = pl.DataFrame(
        {
            "FullName": names,
            "streetAddress": streets,
            "BirthYear": [None if rng.random() < 0.1 else year for year in frame["birth_year"]],
        }
    )
    return made[order.tolist()], order


def sketches(frame):
    fold = ValueSketchFold()
    return DataTable.scan(frame).fold(fold).results[fold.name]


def test_value_sketches_are_a_fold(tmp_path):
    for place in range(4):
        people(300, place).write_csv(tmp_path / f"{place}.csv")

    def mergeable(found, expected):
        for name, own in expected.items():
            assert found[name].rows == own.rows and (found[name].hashes == own.hashes).all()

    check_fold(ValueSketchFold(), DataTable.scan(tmp_path), mergeable=mergeable)


def test_columns_that_say_the_same_are_paired():
    left = people(2000)
    right, _ = dirty(left)
    found = match_schemas(sketches(left), sketches(right))
    assert {(item.left, item.right) for item in found} == {
        ("full_name", "FullName"),
        ("street", "streetAddress"),
        ("birth_year", "BirthYear"),
    }
    assert name_similarity("customerID", "customer_id") == 1.0
    assert name_similarity("price", "city") < 0.3
    assert match_schemas({}, sketches(right)) == []


def test_joins_are_those_of_brute_force():
    left = people(3000)
    rng = np.random.default_rng(2)
    orders = pl.DataFrame(
        {
            "order": np.arange(8000) + 10**6,
            "buyer": rng.choice(left["customer_id"].to_numpy()[:2500], 8000),
            "stray": np.where(rng.random(8000) < 0.5, rng.integers(1000, 4000, 8000), -5),
        }
    )
    joins = {(item.left, item.right): item for item in find_joins(sketches(left), sketches(orders))}
    best = joins["customer_id", "buyer"]
    assert best.kind == "one to many" and best.right_in_left == 1.0
    ids, buyers = set(left["customer_id"]), set(orders["buyer"])
    assert best.left_in_right == pytest.approx(len(ids & buyers) / len(ids), abs=0.06)
    assert ("customer_id", "order") not in joins and ("full_name", "buyer") not in joins


def test_letters_are_compared_as_sets():
    def plain(text):
        padded = f" {text.lower()} ".encode()
        padded = b" " + padded
        return {padded[place : place + 3] for place in range(len(padded) - 2)}

    left, right = ["anna meier", None, "Weber", ""], ["anna maier", "x", "weber", "y"]
    found = grams_of(left).similarity(grams_of(right), np.array([[0, 0], [1, 1], [2, 2], [3, 3]]))
    one, other = plain(left[0]), plain(right[0])
    assert found[0] == pytest.approx(2 * len(one & other) / (len(one) + len(other)), abs=0.02)
    assert np.isnan(found[[1, 3]]).all() and found[2] == 1.0


@pytest.fixture(scope="module")
def candidates_of_people():
    left = people(1500, seed=4)
    right, order = dirty(left, seed=5)
    columns = [
        ("full_name", "FullName"),
        ("street", "streetAddress"),
        ("birth_year", "BirthYear"),
    ]
    return find_pairs(DataTable.scan(left), DataTable.scan(right), columns), order


@pytest.mark.parametrize("taught", [False, True])
def test_rows_that_are_one_thing_are_found(candidates_of_people, taught):
    found, order = candidates_of_people
    truth = {(int(place), at) for at, place in enumerate(order)}
    candidates = set(map(tuple, found.pairs.tolist()))
    assert len(truth & candidates) > 0.98 * len(truth)
    # Far fewer than all pairs are looked at.
    assert len(candidates) < 0.1 * 1500 * 1500
    labels = None
    if taught:
        labels = np.array([float(pair in truth) for pair in map(tuple, found.pairs.tolist())])
        labels[np.random.default_rng(6).random(len(labels)) < 0.95] = np.nan
    model = fit_matches(found, labels)
    assert model.is_taught == taught
    matched = {(item.left - 1, item.right - 1) for item in match_entities(found, model)}
    precision, recall = len(matched & truth) / len(matched), len(matched & truth) / len(truth)
    assert precision > 0.98 and recall > 0.93
    every = match_entities(found, model, one_to_one=False, least=0.0)
    assert len(every) == len(found.pairs) and every[0].score >= every[-1].score


def test_what_cannot_be_matched_is_refused():
    left = DataTable.scan(people(50))
    with pytest.raises(ConfigError, match="no pair of columns is text"):
        find_pairs(left, left, [("birth_year", "birth_year")])
    with pytest.raises(ConfigError, match="no column"):
        find_pairs(left, left, [("name", "full_name")])
    found = find_pairs(left, left, [("full_name", "full_name"), ("street", "street")])
    with pytest.raises(DataError, match="all of one kind"):
        fit_matches(found, np.ones(len(found.pairs)))


def test_the_verb(tmp_path, capsys):
    left = people(300)
    right, order = dirty(left)
    left.write_csv(tmp_path / "left.csv")
    right.write_csv(tmp_path / "right.csv")
    words = ["table", "match", str(tmp_path / "left.csv"), str(tmp_path / "right.csv")]

    def run(*more):
        app([*words, *map(str, more)], result_action="return_value", exit_on_error=False)
        return capsys.readouterr().out

    assert "streetAddress" in run()
    told = json.loads(run("--rows", "--out", tmp_path / "pairs.csv", "--json"))
    pairs = pl.read_csv(tmp_path / "pairs.csv")
    assert pairs.height == len(told["rows"]["matches"]) > 270
    labels = [(int(place) + 1, at + 1, 1) for at, place in enumerate(order[:60])]
    labels += [(one, other + 1, 0) for one, other, _ in labels[:59]]
    pl.DataFrame(labels, schema=["left", "right", "match"], orient="row").write_csv(
        tmp_path / "labels.csv"
    )
    names = "full_name=FullName, street=streetAddress"
    out = run("--rows", "--labels", tmp_path / "labels.csv", "--columns", names)
    assert "pairs told" in out
    with pytest.raises(ConfigError, match="--least"):
        run("--least", 2)
