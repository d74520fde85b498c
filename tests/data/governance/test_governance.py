"""Anonymity against brute force, noise against its distribution, budgets, erasure, audits, bias."""

import json
import math
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from tests.data.table.check_fold import check_fold

from steelyard.cli.data import app
from steelyard.data.governance import (
    AuditLog,
    ColumnTags,
    GroupCountsFold,
    Lineage,
    PrivacyLedger,
    check_anonymity,
    discrete_gaussian,
    discrete_laplace,
    erase,
    noisy_aggregate,
    score_slices,
    suggest_tags,
)
from steelyard.data.governance.bias import SliceFold
from steelyard.data.pipeline import Drop, Pipeline, Rescale
from steelyard.data.table import DataTable, ProfileFold
from steelyard.errors import CapacityError, ConfigError, DataError


def run(*words):
    app([str(word) for word in words], result_action="return_value", exit_on_error=False)


def people(count=2000, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user_id": [f"u{place}" for place in range(count)],
            "age": rng.integers(20, 80, count),
            "zip": rng.choice([f"75{place:03d}" for place in range(12)], count),
            "diagnosis": rng.choice(["a", "b"], count, p=[0.9, 0.1]),
        }
    )


def test_groups_are_those_of_brute_force():
    frame = people()
    table = DataTable.scan(frame)
    found = check_anonymity(table, ["age", "zip"], 3, sensitive="diagnosis")
    groups = frame.group_by("age", "zip").agg(pl.len(), pl.col("diagnosis").n_unique().alias("d"))
    small = groups.filter(pl.col("len") < 3)
    told = groups.filter((pl.col("len") >= 3) & (pl.col("d") == 1))
    assert (found.groups, found.small_groups) == (groups.height, small.height)
    assert (found.small_rows, found.told_rows) == (small["len"].sum(), told["len"].sum())
    assert found.told_groups == told.height and not found.holds
    known = {(row["age"], row["zip"]): row["len"] for row in small.to_dicts()}
    assert found.examples
    for values, count in found.examples:
        assert known[values["age"], values["zip"]] == count
    assert check_anonymity(table, ["diagnosis"], 5).holds
    with pytest.raises(ConfigError, match="no column 'q'"):
        check_anonymity(table, ["q"])
    with pytest.raises(ConfigError, match="k = 1"):
        check_anonymity(table, ["age"], 1)


@pytest.mark.parametrize(
    "fold",
    [GroupCountsFold(("age", "zip"), "diagnosis"), SliceFold(("zip", "diagnosis", "diagnosis"))],
    ids=["groups", "slices"],
)
def test_folds_of_groups(fold, tmp_path):
    for place in range(4):
        people(200, place).write_csv(tmp_path / f"{place}.csv")
    check_fold(fold, DataTable.scan(tmp_path))


def test_tags_are_suggested_and_kept(tmp_path):
    profile = DataTable.scan(people()).fold(ProfileFold()).results["profile"]
    tags = suggest_tags(profile, {"zip": "plain"})
    assert tags.columns == {
        "user_id": "identifier",
        "age": "quasi-identifier",
        "zip": "plain",
        "diagnosis": "sensitive",
    }
    tags.save(tmp_path / "tags.json")
    assert ColumnTags.open(tmp_path / "tags.json") == tags
    with pytest.raises(ConfigError, match="no tag"):
        ColumnTags(columns={"a": "secret"})


def test_noise_has_its_distribution():
    draw = random.Random(0).randrange
    scale = Fraction(7, 2)
    found = Counter(discrete_laplace(scale, draw) for _ in range(6000))
    weight = (math.exp(2 / 7) - 1) / (math.exp(2 / 7) + 1)
    for value in (0, 1, -1, 3, -5):
        share = weight * math.exp(-abs(value) * 2 / 7)
        assert found[value] / 6000 == pytest.approx(share, abs=4 * math.sqrt(share / 6000))
    bell = [discrete_gaussian(Fraction(30), draw) for _ in range(3000)]
    assert np.var(bell) == pytest.approx(30, rel=0.1)
    assert abs(np.mean(bell)) < 0.4


def test_an_exhausted_budget_is_the_end_of_answers(tmp_path):
    table = DataTable.scan(people(500))
    ledger = PrivacyLedger(tmp_path / "ledger")
    with pytest.raises(ConfigError, match="no budget"):
        noisy_aggregate(table, ledger, 0.1)
    ledger.begin(1.0, 1e-5)
    with pytest.raises(ConfigError, match="already"):
        ledger.begin(5.0)
    draw = random.Random(1).randrange
    answers = [noisy_aggregate(table, ledger, 0.1, draw=draw) for _ in range(8)]
    assert all(abs(answer.value - 500) < 150 for answer in answers)
    total = noisy_aggregate(
        table, ledger, 0.2, column="age", bounds=(0, 100), delta=1e-6, draw=draw
    )
    assert abs(total.value - people(500)["age"].sum()) < 10 * (total.high - total.low)
    # Refused, however it is asked again, and by another process as well.
    for again in (ledger, PrivacyLedger(tmp_path / "ledger")):
        with pytest.raises(CapacityError, match="epsilon 0"):
            noisy_aggregate(table, again, 0.1)
    assert len(ledger.entries) == 9 and ledger.left[0] < 1e-9
    with pytest.raises(ConfigError, match="bounds"):
        noisy_aggregate(table, ledger, 0.1, column="age")


def test_the_budget_is_paid_before_the_table_is_read(tmp_path, monkeypatch):
    ledger = PrivacyLedger(tmp_path)
    ledger.begin(1.0)

    def dies(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(DataTable, "fold", dies)
    with pytest.raises(KeyboardInterrupt):
        noisy_aggregate(DataTable.scan(people(10)), ledger, 0.6)
    assert ledger.left[0] == pytest.approx(0.4)


@pytest.fixture
def made(tmp_path):
    """A table, features with and without the key, and a summary of those."""
    frame = people(300).with_columns(v=pl.col("age") * 1.5)
    frame.write_csv(tmp_path / "people.csv")
    source = tmp_path / "people.csv"
    lineage = Lineage(tmp_path / "lineage")
    table = DataTable.scan(str(source))
    for name, steps in (
        ("keyed", (Rescale(columns=("v",)),)),
        ("bare", (Rescale(columns=("v",)), Drop(columns=("user_id",)))),
    ):
        fitted = Pipeline(steps).fit(table)
        fitted.save(tmp_path / f"{name}.pipeline")
        fitted.transform(table, training=True).write(tmp_path / f"{name}.parquet")
        lineage.record(
            tmp_path / f"{name}.parquet",
            [source],
            pipeline=tmp_path / f"{name}.pipeline",
            training=True,
        )
    keyed = pl.read_parquet(tmp_path / "keyed.parquet")
    (tmp_path / "parts").mkdir()
    keyed.head(100).write_csv(tmp_path / "parts" / "a.csv")
    keyed.tail(200).write_ndjson(tmp_path / "parts" / "b.jsonl")
    lineage.record(tmp_path / "parts", [tmp_path / "keyed.parquet"])
    (tmp_path / "keyed.quarantine.csv").write_text("u7\n")
    return tmp_path, lineage


def holds(path, key):
    if path.is_dir():
        return any(holds(item, key) for item in path.iterdir())
    return key.encode() in path.read_bytes()


def test_a_key_is_erased_from_all_that_was_made_of_it(made):
    folder, lineage = made
    log = AuditLog(folder / "audit.jsonl")
    before = pl.read_parquet(folder / "bare.parquet")
    found = erase(lineage, "user_id", ["u7", "u250"], audit=log, reason="asked for")
    for name in ("people.csv", "keyed.parquet", "parts"):
        path = folder / name
        table = DataTable.scan(str(path))
        left = table.select(["user_id"]).collect()[0]["user_id"].to_pylist()
        assert "u7" not in left and "u250" not in left and "u70" in left
        assert found.rows[str(path)] == 2 and len(left) == 298
    bare = pl.read_parquet(folder / "bare.parquet")
    assert bare.height == before.height - 2
    assert found.rebuilt == [str(folder / "bare.parquet")]
    assert found.removed == [str(folder / "keyed.quarantine.csv")]
    assert len(found.learned) == 2 and not lineage.changed()
    # Values of other rows are what they were; the audit names no key.
    kept = pl.read_csv(folder / "people.csv", schema_overrides={"zip": pl.String})
    expected = people(300).filter(~pl.col("user_id").is_in(["u7", "u250"]))
    assert kept.drop("v").equals(expected)
    assert [entry["action"] for entry in log.entries()] == ["erasure begun", "erasure done"]
    assert "u250" not in (folder / "audit.jsonl").read_text()
    again = erase(lineage, "user_id", ["u7", "u250"], audit=log)
    assert sum(again.rows.values()) == 0


def test_a_killed_erasure_goes_on(made, monkeypatch):
    folder, lineage = made
    log = AuditLog(folder / "audit.jsonl")

    def dies(record):
        raise KeyboardInterrupt

    monkeypatch.setattr("steelyard.data.governance.erasure._rebuild", dies)
    with pytest.raises(KeyboardInterrupt):
        erase(lineage, "user_id", ["u7"], audit=log)
    monkeypatch.undo()
    erase(lineage, "user_id", ["u7"], audit=log)
    assert pl.read_parquet(folder / "bare.parquet").height == 299
    assert not holds(folder / "parts", '"u7"')


def test_an_erasure_that_cannot_be_whole_touches_nothing(made):
    folder, lineage = made
    log = AuditLog(folder / "audit.jsonl")
    before = (folder / "people.csv").read_bytes()
    (folder / "bare.pipeline").unlink()
    with pytest.raises(DataError, match="no pipeline to make it again"):
        erase(lineage, "user_id", ["u7"], audit=log)
    with pytest.raises(ConfigError, match="no table of the lineage"):
        erase(lineage, "customer", ["u7"], audit=log)
    with (folder / "people.csv").open("a") as file:
        file.write("broken,row\n")
    with pytest.raises(DataError, match="cannot be read"):
        erase(lineage, "user_id", ["u7"], audit=log)
    assert (folder / "people.csv").read_bytes() == before + b"broken,row\n"
    assert not log.entries()


def test_lineage_tells_what_was_changed_and_refuses_circles(made):
    folder, lineage = made
    keys = {Path(path).name: item.key for path, item in lineage.records.items()}
    assert len(set(keys.values())) == 3
    with pytest.raises(ConfigError, match="made of itself"):
        lineage.record(folder / "people.csv", [folder / "keyed.parquet"])
    with pytest.raises(DataError, match="not there"):
        lineage.record(folder / "none", [folder / "people.csv"])
    (folder / "keyed.parquet").write_bytes(b"else")
    assert lineage.changed() == [str(folder / "keyed.parquet")]


def test_a_changed_audit_is_found(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    for place in range(4):
        log.append("read", {"rows": place})
    lines = log.path.read_text().splitlines()
    assert log.head == json.loads(lines[-1])["hash"]
    log.path.write_text("\n".join([*lines[:1], *lines[2:]]) + "\n")
    with pytest.raises(DataError, match="line 2"):
        log.append("read", {})
    log.path.write_text("\n".join(lines).replace('"rows": 2', '"rows": 9') + "\n")
    with pytest.raises(DataError, match="line 3"):
        log.entries()
    log.path.write_text("\n".join(lines) + '\n{"cut')
    with pytest.raises(DataError, match="cut short"):
        log.entries()


def test_slices_are_those_of_counting():
    rng = np.random.default_rng(0)
    group = rng.choice(["f", "m"], 4000)
    truth = rng.random(4000) < 0.5
    chosen = np.where(group == "m", truth | (rng.random(4000) < 0.3), truth)
    frame = pl.DataFrame({"g": group, "t": truth, "p": chosen})
    every, *slices = score_slices(
        DataTable.scan(frame), by="g", truth="t", prediction="p", positive="true"
    )
    assert every.rows == 4000 and {item.name for item in slices} == {"f", "m"}
    for item in slices:
        own = group == item.name
        assert item.chosen.value == pytest.approx(chosen[own].mean())
        assert item.wrong.value == pytest.approx(chosen[own & ~truth].mean())
        assert item.right.value == pytest.approx((chosen == truth)[own].mean())
        assert item.found.value == 1.0
        assert any("wrongly named" in line for line in item.findings)
    fair = frame.with_columns(p=pl.col("t"))
    for item in score_slices(
        DataTable.scan(fair), by="g", truth="t", prediction="p", positive="true"
    )[1:]:
        assert not [line for line in item.findings if "wrongly" in line]
    with pytest.raises(ConfigError, match="no class"):
        score_slices(DataTable.scan(frame), by="g", truth="t", prediction="p", positive="maybe")


def test_verbs(made, capsys):
    folder, _ = made
    source = folder / "people.csv"
    run("govern", "tags", source, "--out", folder / "tags.json")
    assert "identifier" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        run("govern", "check", source, "--tags", folder / "tags.json", "--k", 3, "--json")
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out)["small_groups"] > 0
    ledger = folder / "ledger"
    run("govern", "budget", ledger, "--epsilon", 1)
    given = (source, "--ledger", ledger, "--epsilon", 0.6)
    run("govern", "ask", *given, "--where", "diagnosis=a", "--json")
    with pytest.raises(CapacityError):
        run("govern", "ask", *given)
    with pytest.raises(ConfigError, match="--where"):
        run("govern", "ask", *given, "--where", "nothing")
    run("govern", "budget", ledger, "--json")
    capsys.readouterr()
    run("govern", "erase", folder / "lineage", "--column", "user_id", "--keys", "u1")
    assert "Nothing was touched" in capsys.readouterr().out
    run("govern", "erase", folder / "lineage", "--column", "user_id", "--keys", "u1", "--yes")
    run("govern", "audit", folder / "lineage" / "audit.jsonl")
    run("govern", "lineage", folder / "lineage")
    assert "unbroken" in capsys.readouterr().out
    people(50).with_columns(p=pl.col("diagnosis")).write_csv(folder / "scored.csv")
    words = ("--by", "zip", "--truth", "diagnosis", "--prediction", "p", "--positive", "b")
    run("govern", "bias", folder / "scored.csv", *words)
    assert "wrongly named" in capsys.readouterr().out


def test_wrong_places_are_told_and_nothing_is_made_there(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    none, table = tmp_path / "none", tmp_path / "t.csv"
    with pytest.raises(ConfigError, match="none has no budget"):
        run("govern", "ask", table, "--ledger", none, "--epsilon", 1)
    with pytest.raises(ConfigError, match="none holds no lineage"):
        run("govern", "lineage", none)
    with pytest.raises(ConfigError, match="none holds no lineage"):
        run("govern", "erase", none, "--column", "a", "--keys", 1)
    with pytest.raises(DataError, match=r"t\.csv is no audit log"):
        run("govern", "audit", table)
    with pytest.raises(ConfigError, match="no file"):
        run("govern", "audit", tmp_path)
    with pytest.raises(ConfigError, match="epsilon -1"):
        run("govern", "budget", none, "--epsilon", -1)
    assert not none.exists()
