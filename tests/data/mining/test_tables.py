"""Baskets from files, mining in parts, rules, forecasts, and the verbs."""

import gzip
import itertools
import json
import math
import signal
import subprocess
import sys

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from steelyard.cli.data import app  # noqa: E402
from steelyard.data.mining import (  # noqa: E402
    Baskets,
    count_itemsets,
    find_rules,
    forecast_mining,
    heaton_baskets,
    mine,
    mine_table,
    quest_baskets,
    read_baskets,
    write_itemsets,
)
from steelyard.data.table import DataTable  # noqa: E402
from steelyard.errors import CapacityError, ConfigError, DataError  # noqa: E402


def run(*words):
    app([str(word) for word in words], result_action="return_value", exit_on_error=False)


def lists_of(baskets):
    return [
        baskets.labels[baskets.items[begin:end]].tolist()
        for begin, end in itertools.pairwise(baskets.begins)
    ]


def saved(folder, rows, files=3):
    """Write baskets to several .dat files, one of them compressed."""
    folder.mkdir(exist_ok=True)
    for place in range(files):
        own = rows[place * len(rows) // files : (place + 1) * len(rows) // files]
        raw = "".join(" ".join(map(str, row)) + "\n" for row in own).encode()
        if place:
            (folder / f"{place}.dat").write_bytes(raw)
        else:
            (folder / "0.dat.gz").write_bytes(gzip.compress(raw))
    return folder


def test_lines_that_hold_no_items_are_set_aside(tmp_path):
    path = tmp_path / "a.dat"
    path.write_bytes(b"3 1\t2\r\n\n7,8 7\n1 x\n-4 2\n5 -\n99999999999999999999\n6 5")
    table = DataTable.scan(path)
    rows, quarantine = table.collect()
    assert rows["items"].to_pylist() == [[3, 1, 2], [], [7, 8, 7], [6, 5]]
    told = [(row.row, row.reason) for row in quarantine.rows]
    assert [row for row, _ in told] == [4, 5, 6, 7]
    assert told[0][1] == "no whole number"
    assert told[1][1] == "a negative item"
    assert len(read_baskets(table)[0]) == 4


def test_a_large_file_is_cut_at_lines(tmp_path, monkeypatch):
    from steelyard.data.table import looking

    rows = lists_of(quest_baskets(400, num_items=50, seed=1))
    saved(tmp_path, rows, files=2)
    whole = DataTable.scan(tmp_path).collect()[0]
    monkeypatch.setattr(looking, "PART_BYTES", 500)
    assert whole["items"].to_pylist() == rows


def test_the_same_baskets_from_lists_columns_and_long_tables(tmp_path):
    rows = [["a", "b"], ["b"], ["c", "a"]]
    parquet.write_table(pa.table({"who": [1, 2, 3], "what": rows}), tmp_path / "a.parquet")
    long = "order,product\n" + "".join(
        f"{place},{item}\n" for item in "cab" for place, row in enumerate(rows) if item in row
    )
    (tmp_path / "b.csv").write_text(long)
    baskets, _ = read_baskets(DataTable.scan(tmp_path / "a.parquet"))
    table = DataTable.scan(tmp_path / "b.csv")
    other, _ = read_baskets(table, transaction="order", item="product")
    expected = mine(Baskets.of(rows), 0.3).digest()
    assert mine(baskets, 0.3).digest() == mine(other, 0.3).digest() == expected
    for wrong in ({}, {"transaction": "order"}, {"items": "product"}):
        with pytest.raises(ConfigError):
            read_baskets(table, **wrong)


def test_missing_and_negative_items_of_tables_are_refused(tmp_path):
    for place, row in enumerate([[1, None], [1, -3]]):
        path = tmp_path / f"{place}.parquet"
        parquet.write_table(pa.table({"items": [row]}), path)
        with pytest.raises(DataError):
            read_baskets(DataTable.scan(path))


@pytest.mark.parametrize("how", ["son", "pfp"])
def test_mining_in_parts_is_mining_the_whole(tmp_path, how):
    rows = lists_of(quest_baskets(3000, num_items=60, seed=2))
    rows[5:9] = [[], [3], [], []]
    table = DataTable.scan(saved(tmp_path / "data", rows))
    found, quarantine = mine_table(table, 0.02, how=how)
    assert quarantine.total == 0
    assert found.num_baskets == 3000
    assert found.digest() == mine(Baskets.of(rows), 0.02).digest()
    again, _ = mine_table(table, 0.02, how=how, journal=tmp_path / "j", workers=2)
    assert again.digest() == found.digest()
    assert not list((tmp_path / "j").rglob("*.pack"))


def test_mining_in_parts_of_text_and_of_nothing(tmp_path):
    parquet.write_table(pa.table({"items": [["b", "a"], ["a"], []]}), tmp_path / "a.parquet")
    for how in ("son", "pfp"):
        found, _ = mine_table(DataTable.scan(tmp_path), 0.3, how=how)
        assert [found[place] for place in range(len(found.most_frequent(1)))] == [
            found[place] for place in range(1)
        ]
        assert found.digest() == mine(Baskets.of([["b", "a"], ["a"], []]), 0.3).digest()
        assert len(mine_table(DataTable.scan(tmp_path), 1.0, how=how)[0]) == 0
    with pytest.raises(ConfigError):
        mine_table(DataTable.scan(tmp_path), 0.3, how="tea leaves")


def test_rules_are_those_of_the_definitions():
    rows = lists_of(quest_baskets(300, num_items=12, mean_items=4, seed=4))
    found = find_rules(mine(Baskets.of(rows), 0.02), 0.3, max_consequent=2)
    sets = [set(row) for row in rows]

    def share(items):
        return sum(items <= row for row in sets) / len(sets)

    assert len(found) > 50
    seen = set()
    for place in range(len(found)):
        left = set(found.itemsets[int(found.antecedents[place])][0])
        right = set(found.itemsets[int(found.consequents[place])][0])
        seen.add((frozenset(left), frozenset(right)))
        both, confidence = share(left | right), share(left | right) / share(left)
        assert confidence >= 0.3
        assert not left & right
        lift = confidence / share(right)
        conviction = (1 - share(right)) / (1 - confidence) if confidence < 1 else math.inf
        told = [both, confidence, lift, both - share(left) * share(right), conviction]
        names = ("support", "confidence", "lift", "leverage", "conviction")
        assert np.allclose([getattr(found, name)[place] for name in names], told)
    expected = {
        (frozenset(items) - frozenset(right), frozenset(right))
        for items, count in (found.itemsets[place] for place in range(len(found.itemsets)))
        for size in (1, 2)
        for right in itertools.combinations(items, size)
        if len(items) > size and count / len(sets) >= 0.3 * share(set(items) - set(right)) - 1e-12
    }
    assert seen == expected


def test_rules_that_cannot_be_asked_for():
    baskets = Baskets.of([[1, 2], [1, 2], [2]])
    found = mine(baskets, 0.5)
    for wrong in ((0.0, {}), (1.1, {}), (0.5, {"max_consequent": 0}), (0.5, {"min_lift": -1})):
        with pytest.raises(ConfigError):
            find_rules(found, wrong[0], **wrong[1])
    with pytest.raises(ConfigError, match="closed"):
        find_rules(mine(baskets, 0.5, target="closed"), 0.5)
    with pytest.raises(CapacityError):
        find_rules(found, 0.5, max_rules=1)
    with pytest.raises(ConfigError):
        find_rules(found, 0.5).best(1, by="beauty")


def test_generators_draw_what_they_say():
    drawn = heaton_baskets(2000, most_items=20, planted_fraction=0.5, num_items=1000, seed=1)
    lengths = np.diff(drawn.begins)
    assert lengths.max() == 20
    assert all(len(set(row)) == len(row) for row in lists_of(drawn)[:200])
    assert abs((drawn.items < 20).any() and 0.5 - _share_planted(drawn)) < 0.05
    again = heaton_baskets(2000, most_items=20, planted_fraction=0.5, num_items=1000, seed=1)
    assert np.array_equal(drawn.items, again.items)
    quest = quest_baskets(3000, seed=1)
    assert 8 < np.diff(quest.begins).mean() < 12
    assert count_itemsets(quest, 0.01) > 300
    with pytest.raises(ConfigError):
        heaton_baskets(10, most_items=0)
    with pytest.raises(ConfigError):
        quest_baskets(10, mean_items=0)


def _share_planted(drawn):
    return np.mean([min(row, default=20) < 20 for row in lists_of(drawn)])


def test_a_forecast_speaks_of_the_whole():
    baskets = quest_baskets(8000, num_items=200, seed=5)
    told = forecast_mining(baskets, 0.02)
    count = count_itemsets(baskets, 0.02)
    assert 0.5 < told.itemsets.value / count < 2
    assert told.sample_rows <= 4000
    assert set(told.seconds) == {"apriori", "eclat", "fpgrowth"}
    assert told.memory.value > 0
    assert forecast_mining(baskets, 1.0).itemsets.value == 0
    with pytest.raises(DataError):
        forecast_mining(Baskets.of([[1]]), 0.5)


def test_itemsets_are_written_whole(tmp_path):
    found = mine(Baskets.of([[1, 2], [1, 2], [2]]), 0.5)
    for name in ("a.parquet", "a.arrow", "a.dat"):
        write_itemsets(found, tmp_path / name)
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert {tuple(row["items"]): row["support"] for row in rows} == {(1,): 2, (2,): 3, (1, 2): 2}
    assert set((tmp_path / "a.dat").read_text().splitlines()) == {"1 (2)", "2 (3)", "1 2 (2)"}
    with pytest.raises(ConfigError):
        write_itemsets(found, tmp_path / "a.xlsx")


def test_the_verbs(tmp_path, capsys):
    rows = lists_of(quest_baskets(1000, num_items=40, seed=6))
    folder = saved(tmp_path / "data", rows)
    expected = mine(Baskets.of(rows), 0.05)
    out = tmp_path / "all.dat"
    run("itemsets", "mine", folder, "--support", 0.05, "--json", "--forecast", "--out", out)
    told = json.loads(capsys.readouterr().out)
    assert told["itemsets"] == len(expected) == len(out.read_text().splitlines())
    assert {row["quantity"] for row in told["forecasts"]} == {"data.itemsets", "data.mining_time"}
    run("itemsets", "mine", folder, "--support", 0.05, "--partition", "son", "--json")
    assert json.loads(capsys.readouterr().out)["itemsets"] == len(expected)
    run("itemsets", "mine", folder, "--top", 5, "--report", tmp_path / "page.html")
    assert "Most frequent" in capsys.readouterr().out
    assert (tmp_path / "page.html").stat().st_size > 1000
    rules = tmp_path / "rules.parquet"
    run("itemsets", "rules", folder, "--support", 0.05, "--json", "--out", rules)
    told = json.loads(capsys.readouterr().out)
    assert told["rules"] == parquet.read_metadata(rules).num_rows
    run("itemsets", "advise", folder, "--support", 0.05, "--json")
    assert json.loads(capsys.readouterr().out)["algorithm"] in ("apriori", "eclat", "fpgrowth")


def test_verbs_refuse_what_they_cannot_do(tmp_path):
    folder = saved(tmp_path / "data", [[1, 2], [1]] * 20)
    for words in (
        (),
        ("--support", 2),
        ("--support", 0.5, "--top", 3),
        ("--support", 0.5, "--workers", 0),
        ("--support", 0.5, "--partition", "son", "--target", "closed"),
    ):
        with pytest.raises(ConfigError):
            run("itemsets", "mine", folder, *words)
    with pytest.raises(CapacityError, match="are forecast"):
        rows = saved(tmp_path / "wide", [list(range(16))] * 40)
        run("itemsets", "mine", rows, "--support", 0.5, "--memory", "100 kB")


KILLED = """
import sys
from steelyard.data.mining import miner, quest_baskets
from pathlib import Path
import os, signal
kept = miner.PackJournal.kept
left = int(sys.argv[2])
def counted(self, name, work):
    global left
    made = kept(self, name, work)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return made
miner.PackJournal.kept = counted
found = miner.mine(quest_baskets(2000, num_items=100, seed=3), 0.01, journal=Path(sys.argv[1]))
print(found.digest(), left)
"""


def test_a_run_that_was_killed_goes_on(tmp_path):
    expected = mine(quest_baskets(2000, num_items=100, seed=3), 0.01).digest()
    first = [sys.executable, "-c", KILLED, str(tmp_path / "j")]
    killed = subprocess.run([*first, "5"], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    kept = sorted((tmp_path / "j").glob("*.pack"))
    assert len(kept) == 5
    kept[2].write_bytes(kept[2].read_bytes()[:-9])
    second = subprocess.run([*first, "0"], capture_output=True, text=True, check=True)
    digest, left = second.stdout.split()
    assert digest == expected
    # Of sixteen parts four were whole, and one was made again.
    assert int(left) <= -4
    assert not list((tmp_path / "j").glob("*.pack"))
