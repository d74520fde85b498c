"""The verbs `laws curate` and `laws select` on files."""

import json

import numpy as np
import pytest

from steelyard.laws.forms.pools.pool_utility import pool_utility


@pytest.fixture
def pools(tmp_path):
    law, size = pool_utility(), 12.8e6
    points = {"samples": np.tile([1, 2, 4, 6, 8, 10.0], 2) * size, "pool_size": np.full(12, size)}
    theta = [
        law.coordinates({"n0": 4e6, "d": 0.1, "b": b, "tau": tau})
        for b, tau in ((-0.18, 3.0), (-0.14, 6.0))
    ]
    names = np.repeat(["clean", "web"], 6)
    errors = np.exp(np.where(names == "clean", *law.predict(np.array(theta), points)))
    errors *= np.exp(0.002 * np.random.default_rng(0).standard_normal(12))
    path = tmp_path / "pools.csv"
    rows = zip(names, points["samples"], points["pool_size"], errors, strict=True)
    lines = "".join(f"{name},{seen},{unique},{error}\n" for name, seen, unique, error in rows)
    path.write_text("corpus,samples,pool_size,error\n" + lines)
    return path


@pytest.fixture
def losses(tmp_path):
    path = tmp_path / "losses.csv"
    rows = [
        f"m{size},{count},{(4 - size / 400) * (1 + count / 3000) ** -0.25},{size}e6"
        for size in (60, 120, 250)
        for count in (0, 200, 400, 800, 1600, 3200, 6400, 12800)
    ]
    path.write_text("model,examples,loss,parameters\n" + "\n".join([*rows, "bad,200,nan,1e6"]))
    return path


def test_curate(pools, run):
    how = (pools, "--pool", "corpus", "--samples", "640M")
    said = run("curate", *how)
    assert "Draw clean 50 %, web 50 %." in said and "overtakes clean" in said
    found = json.loads(run("curate", *how, "--candidates", "subsets", "--json"))
    assert found["pools"] == ["clean", "web"] and len(found["rejected"]) == 2
    assert found["utilities"]["clean"]["value"] < found["utilities"]["web"]["value"] < 0
    larger = ("--pool-size", "clean=0.3B", "web=12.8M")
    many = json.loads(run("curate", *how, *larger, "--json"))
    assert many["pools"] == ["clean"] and many["weights"] == {"clean": 1.0}
    assert "no column of words 'pool'" in run("curate", pools, "--samples", "1e8", code=2)
    assert "one pass of the smallest pool" in run(
        "curate", pools, "--pool", "corpus", "--samples", "1M", code=2
    )


def test_select(losses, run):
    said = run("select", losses, "--target-examples", "102400")
    assert said.index("m250") < said.index("m120") < said.index("m60")
    assert "given up: bad (loss nan at 200 examples)" in said
    found = json.loads(run("select", losses, "--target-examples", "102400", "--json"))
    assert found["best"] == "m250" and found["flops"] > 0 and "bad" in found["failed"]
    assert found["models"][0]["expected_loss"]["low"] < found["models"][0]["score"]
    by_size = json.loads(
        run("select", losses, "--target-examples", "102400", "--method", "size", "--json")
    )
    assert by_size["models"][0]["expected_loss"] is None
    assert "no whole number" in run("select", losses, "--target-examples", "1.5", code=2)
    twice = losses.with_name("twice.csv")
    twice.write_text("model,examples,loss,parameters\na,200,3,1e6\na,200,3.1,1e6\n")
    assert "two losses at 200" in run("select", twice, "--target-examples", "1000", code=2)
    assert "no column 'name'" in run(
        "select", losses, "--target-examples", "1000", "--model", "name", code=2
    )
