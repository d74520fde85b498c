import json

import numpy as np
import pytest

from steelyard import laws


@pytest.fixture
def table(tmp_path):
    sizes, tokens = (
        np.repeat([1e5, 3e5, 6e5, 1.2e6, 2.5e6], 6),
        np.tile([5e5, 1e6, 2e6, 4e6, 8e6, 1.6e7], 5),
    )
    loss = 1.2 + 30 / sizes**0.25 + 400 / tokens**0.4
    loss *= np.exp(0.002 * np.random.default_rng(0).standard_normal(30))
    path = tmp_path / "runs.csv"
    rows = [
        f"{n:.0f},{d:.0f},{value!r},x"
        for n, d, value in zip(sizes, tokens, loss.tolist(), strict=True)
    ]
    path.write_text("n,d,loss,word\n" + "\n".join(rows) + "\n")
    return path


COLUMNS = ("--parameters", "n", "--tokens", "d")


def test_fit_predict_allocate_next(table, tmp_path, run):
    out = tmp_path / "fit.json"
    said = run(
        "fit",
        table,
        *COLUMNS,
        "--counts",
        "total",
        "--bootstraps",
        60,
        "--out",
        out,
        "--profile",
        "alpha",
    )
    assert "alpha" in said and "30 points" in said and "profile of alpha" in said
    again = run("fit", table, *COLUMNS, "--counts", "total", "--bootstraps", 60, "--json")
    assert again == out.read_text() + "\n" and json.loads(again)["trouble"] == []
    at = ("--at", "parameters=5M", "tokens=30M")
    answer = json.loads(run("predict", "--fit", out, *at, "--json"))
    assert answer["low"] < answer["value"] < answer["high"] and answer["provenance"] == "fitted"
    assert "80 % interval" in run("predict", "--fit", out, *at)
    several = run("predict", "--runs", table, *COLUMNS, *at)
    assert "Carried by" in several and several == run("forecast", table, *COLUMNS, *at)
    best = json.loads(run("allocate", "--flops", "1e14FLOP", "--fit", out, "--json"))
    assert 6 * best["parameters"]["value"] * best["tokens"]["value"] == pytest.approx(
        1e14, rel=1e-9
    )
    assert "held back by max tokens" in run(
        "allocate", "--flops", "1e14", "--fit", out, "--max-tokens", "8M"
    )
    ranked = json.loads(
        run("next", "--fit", out, *at, "--parameters", "1M,3M", "--tokens", "8M,30M", "--json")
    )
    assert len(ranked["flops"]) == 4 and min(ranked["interval_after"]) < ranked["interval_before"]
    assert "Best buy first" in run(
        "next", "--fit", out, *at, "--parameters", "1M,3M", "--tokens", "8M,30M"
    )


def test_fit_with_a_held_parameter_and_rows_chosen(table, run):
    said = json.loads(
        run(
            "fit",
            table,
            *COLUMNS,
            "--fix",
            "E=1.2",
            "--where",
            "n=1e5..1.2e6",
            "--bootstraps",
            10,
            "--json",
        )
    )
    assert said["fixed"] == {"E": 1.2} and len(said["target"]) == 24


def test_charts_and_report_are_written(table, tmp_path, run):
    picture, page = tmp_path / "fit.svg", tmp_path / "fit.html"
    run("fit", table, *COLUMNS, "--bootstraps", 40, "--chart", picture, "--report", page)
    assert "<svg" in picture.read_text()[:200] and "<html" in page.read_text()[:400].lower()


def test_compare_names_the_form_the_runs_came_from(table, run):
    found = json.loads(run("compare", table, *COLUMNS, "--law", "chinchilla,kaplan", "--json"))
    assert found["best"] == "chinchilla" and len(found["forms"]) == 2
    assert "extrapolates" in run("compare", table, *COLUMNS, "--law", "chinchilla", "kaplan")


def test_isoflop(tmp_path, run):
    rows = ["flops,params,loss"]
    for flops in (1e17, 1e18, 1e19, 1e20):
        best = 0.1 * flops**0.5
        rows += [
            f"{flops},{best * factor},{2 + 1e3 * flops**-0.2 + 0.05 * np.log(factor) ** 2}"
            for factor in (0.25, 0.5, 1, 2, 4)
        ]
    path = tmp_path / "isoflop.csv"
    path.write_text("\n".join(rows) + "\n")
    found = json.loads(run("isoflop", path, "--parameters", "params", "--at", "1e21", "--json"))
    assert found["exponent"]["value"] == pytest.approx(0.5, abs=0.01)
    assert found["at"]["parameters"]["value"] == pytest.approx(0.1 * 1e21**0.5, rel=0.1)
    assert "compute^0.50" in run("isoflop", path, "--parameters", "params")


def test_registry_and_theory(run):
    assert "besiroglu2024" in run("registry")
    names = {item["name"] for item in json.loads(run("registry", "--json"))}
    assert names == set(laws.published)
    assert len(json.loads(run("registry", "kaplan2020", "--json"))) == 1
    assert "have no width" in run("allocate", "--flops", "1e22FLOP", "--published", "besiroglu2024")
    solved = json.loads(
        run("theory", "--steps", 30, "--width", 40, "--modes", 200, "--budget", 1e4, "--json")
    )
    assert (
        solved["test_loss"][-1] < solved["test_loss"][0] and solved["compute_optimal"]["steps"] > 1
    )
    assert "compute-optimal width" in run("theory", "--steps", 30, "--modes", 200)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "TABLE", "--loss", "loss2", *COLUMNS], "loss2"),
        (["fit", "TABLE", "--loss", "word", *COLUMNS], "word"),
        (["fit", "TABLE"], "parameters"),
        (["fit", "absent.csv"], "absent.csv"),
        (["fit", "TABLE", "--law", "newton", *COLUMNS], "unknown law"),
        (["fit", "TABLE", *COLUMNS, "--fix", "E"], "NAME=NUMBER"),
        (["fit", "TABLE", *COLUMNS, "--where", "n=7"], "no run"),
        (["fit", "TABLE", *COLUMNS, "--chart", "fit.docx"], "docx"),
        (["fit", "TABLE", *COLUMNS, "--profile", "gamma"], "gamma"),
        (["compare", "TABLE", *COLUMNS, "--law", "kaplan"], "two laws"),
        (["predict", "--at", "parameters=1e9"], "either"),
        (["predict", "--at", "parameters=1e9", "--tokens", "d"], "either"),
        (["predict", "--at", "parameters=1e9", "--published", "x", "--loss", "y"], "--runs FILE"),
        (["predict", "--published", "besiroglu2024", "--at", "parameters=much"], "much"),
        (["predict", "--published", "besiroglu2024", "--at", "parameters=1e9"], "missing: tokens"),
        (["allocate", "--flops", "1e22"], "either"),
        (["allocate", "--flops", "1e22", "--published", "hofmann"], "hofmann"),
        (["allocate", "--flops", "much", "--published", "kaplan2020"], "--flops"),
        (["allocate", "--flops", "1e22", "--fit", "TABLE"], "not a stored fit"),
        (["isoflop", "TABLE", *COLUMNS, "--edges", "keep"], "keep"),
        (["registry", "hofmann"], "hofmann"),
        (["theory", "--a", "0.5"], "a"),
    ],
)
def test_bad_input_is_one_line_with_a_hint(table, run, words, message):
    said = run(*(str(table) if word == "TABLE" else word for word in words), code=2)
    assert said.startswith("error:") and message in said and len(said.strip().splitlines()) <= 2


def test_a_far_run_needs_the_flag(table, tmp_path, run):
    out = tmp_path / "fit.json"
    run("fit", table, *COLUMNS, "--bootstraps", 10, "--out", out)
    far = ("predict", "--fit", out, "--at", "parameters=1e10,tokens=1e9")
    assert "two decades" in run(*far, code=2)
    assert "beyond the fitted points" in run(*far, "--extrapolate")
