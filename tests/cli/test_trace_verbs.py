"""`steelyard trace`, and bad traces at every verb that reads one."""

import json

import pytest

from steelyard.cli.main import main
from steelyard.serve.traces import read_rows

HEAD = "arrival_s,input_tokens,output_tokens\n"
GOOD = HEAD + "".join(f"{place / 4},{20 + place % 7},{5 + place % 3}\n" for place in range(400))
MIXED = HEAD + "".join(f"{at},9,9\n" for at in (1, 2, 3, 4, 5, 6, 7000, 8000, 9000, 10_000))
BAD = {
    "unsorted": (HEAD + "1,9,9\n0.5,9,9\n", "line 3: arrival_s is 0.5 s, before"),
    "negative": (HEAD + "0,9,9\n-1,9,9\n", "line 3: arrival_s is -1"),
    "missing column": ("arrival_s,input_tokens\n0,9\n", "line 1: no column 'output_tokens'"),
    "zero tokens": (HEAD + "0,9,9\n1,9,0\n", "line 3: output_tokens is 0"),
    "mixed units": (MIXED, "line 8: arrival_s is 7000 s, and from there on gaps"),
    "not a number": (HEAD + "0,9,9\nnan,9,9\n", "line 3: arrival_s is nan"),
    "duplicate id": (
        "id,arrival_s,input_tokens,output_tokens\na,0,9,9\na,1,9,9\n",
        "line 3: id 'a'",
    ),
}
VERBS = {
    "trace show": ("trace", "show", "TRACE"),
    "trace fit": ("trace", "fit", "TRACE", "--out", "OUT"),
    "trace scale": ("trace", "scale", "TRACE", "--out", "OUT"),
    "serve bench": ("serve", "bench", "http://127.0.0.1:9", "--trace", "TRACE"),
    "serve replay": ("serve", "replay", "MODEL", "TRACE"),
    "sim chain": ("sim", "chain", "--trace", "TRACE"),
    "plan serve": (
        *("plan", "serve", "--model", "7B", "--machine", "H100-SXM5-80GB", "--trace", "TRACE"),
    ),
    "plan tomorrow": (
        *("plan", "tomorrow", "--model", "7B", "--machine", "H100-SXM5-80GB", "--trace", "TRACE"),
    ),
    "plan energy": ("plan", "energy", "--trace", "TRACE", "--count", "4"),
    "sim power": ("sim", "power", "--trace", "TRACE"),
}


def run(*words):
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return caught.value.code


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text(GOOD)
    return path


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("verb", VERBS)
def test_bad_traces_are_refused_by_row_at_every_verb(verb, fault, tmp_path, capsys):
    text, where = BAD[fault]
    trace, out = tmp_path / "bad.csv", tmp_path / "out"
    trace.write_text(text)
    named = {"TRACE": trace, "OUT": out, "MODEL": tmp_path}
    assert run(*(named.get(word, word) for word in VERBS[verb])) == 2
    told = capsys.readouterr().err
    assert f"{trace}, {where}" in told
    assert not out.exists()


def test_show_prints_the_same_for_people_and_programs(good, tmp_path, capsys):
    assert run("trace", "show", good, "--chart", tmp_path / "rate.json") == 0
    told = capsys.readouterr().out
    assert "400 requests" in told and "is not known" in told and "less than two days" in told
    assert "Requests per second" in (tmp_path / "rate.json").read_text()
    assert run("trace", "show", good, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == 400 and found["arrivals"]["cv"] == pytest.approx(0, abs=1e-6)
    assert found["sharing"] is None
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("input_tokens,output_tokens\n5,5\n6,6\n")
    assert run("trace", "show", lengths) == 0
    assert "without arrivals" in capsys.readouterr().out
    assert run("trace", "show", lengths, "--chart", tmp_path / "none.json") == 2
    assert "--chart" in capsys.readouterr().err


def test_fit_then_scale_draws_as_long_as_asked(good, tmp_path, capsys):
    model, drawn = tmp_path / "model.json", tmp_path / "drawn.csv"
    assert run("trace", "fit", good, "--out", model) == 0
    assert "Chosen: " in capsys.readouterr().out
    words = ("trace", "scale", model, "--out", drawn, "--rate", "8 request/s")
    assert run(*words, "--duration", "10 min", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    rows = list(read_rows(drawn))
    assert len(rows) == told["requests"] == pytest.approx(4800, rel=0.1)
    assert {row.input_tokens for row in rows} <= set(range(20, 27))
    first = drawn.read_bytes()
    assert run(*words, "--duration", "10 min") == 0
    assert drawn.read_bytes() == first
    assert run(*words, "--duration", "10 min", "--seed", "1") == 0
    assert drawn.read_bytes() != first


def test_scale_keeps_or_changes_a_trace_as_asked(good, tmp_path, capsys):
    out = tmp_path / "out.csv"
    assert run("trace", "scale", good, "--out", out) == 0
    assert list(read_rows(out)) == list(read_rows(good))
    assert run("trace", "scale", good, "--out", out, "--rate", "1 request/s", "--scale", "1/2") == 0
    rows = list(read_rows(out))
    assert 60 < len(rows) < 140 and max(row.input_tokens for row in rows) == 13
    assert run("trace", "scale", good, "--out", out, "--duration", "50 s") == 0
    assert len(list(read_rows(out))) == 200
    for words, said in (
        (("--duration", "1 h"), "`trace fit` makes a model"),
        (("--rate", "0 request/s"), "--rate"),
        (("--duration", "-1 s"), "--duration"),
        (("--scale", "0"), "scale"),
    ):
        capsys.readouterr()
        assert run("trace", "scale", good, "--out", tmp_path / "none.csv", *words) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "none.csv").exists()


def test_broken_models_are_refused_by_field(good, tmp_path, capsys):
    model = tmp_path / "model.json"
    assert run("trace", "fit", good, "--out", model) == 0
    kept = json.loads(model.read_text())
    kept["parts"][0]["arrivals"]["rate_per_s"] = "fast"
    model.write_text(json.dumps(kept, indent=2))
    capsys.readouterr()
    assert run("trace", "scale", model, "--out", tmp_path / "out.csv") == 2
    assert "rate_per_s" in capsys.readouterr().err
