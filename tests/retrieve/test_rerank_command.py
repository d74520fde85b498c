"""`steelyard retrieve rerank`: from texts to answers and a plan, and what it refuses."""

import json

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.cli.retrieve.forecasting import past_checks
from steelyard.cli.retrieve.rerank.texts import read_texts
from steelyard.errors import DataError
from steelyard.retrieve.multivector.folder import RerankFolder, build_folder
from steelyard.retrieve.text import LatentEncoder
from steelyard.retrieve.text.words import TokenEncoder

WORDS = ["wing", "body", "flow", "heat", "shock", "layer", "plate", "cone", "jet", "nozzle", "wave"]
WORDS += ["drag", "lift", "tail"]


def texts(count=60):
    rng = np.random.default_rng(0)
    made = [" ".join(rng.choice(WORDS, 12)) for _ in range(count)]
    made[7] = ""
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("rerank") / "papers"
    build_folder(path, [(f"row {place}", text) for place, text in enumerate(texts())], cells=8)
    return path


def run(capsys, monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["steelyard", "retrieve", "rerank", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    return ended.value.code or 0, out.out, out.err


def test_a_strange_value_beside_the_texts_spoils_none_of_them(tmp_path):
    source = tmp_path / "papers.jsonl"
    rows = [{"text": f"wing {place}", "part": "704"} for place in range(2000)]
    rows[1990]["part"] = "ml-a"
    source.write_text("\n".join(map(json.dumps, rows)))
    found = read_texts(source, column="text", words=64)
    assert len(found) == 2000 and found[1990] == ("papers.jsonl row 1991", "wing 1990")
    with pytest.raises(DataError, match="the first is row 1991"):
        read_texts(source, column="part", words=64)


def test_words_tell_texts_apart_and_an_empty_text_has_none():
    encoder = TokenEncoder(LatentEncoder.fit(texts(), 8), 16)
    whole, tokens = encoder.encode(["shock wave", "jet nozzle", "", "unheard"])
    assert whole.shape[0] == 4 and [len(own) for own in tokens] == [2, 2, 0, 0]
    _, asked = encoder.encode_queries(["shock"])
    best = [(own @ asked[0].T).max() for own in tokens[:2]]
    assert best[0] > 2 * best[1]
    assert np.linalg.norm(asked[0], axis=1).sum() == pytest.approx(1.0, rel=1e-5)
    assert encoder.fingerprint.startswith("words-16-latent-")


def test_build_search_and_plan(tmp_path, capsys, monkeypatch):
    source, out = tmp_path / "papers.jsonl", tmp_path / "papers"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()))
    code, told, err = run(capsys, monkeypatch, "build", source, "--out", out, "--json")
    assert code == 0, err
    assert json.loads(told)["counts"]["documents"] == 60
    assert json.loads(told)["counts"]["empty"] == 1
    code, told, err = run(capsys, monkeypatch, "search", out, texts()[5], "--k", "3", "--json")
    assert code == 0, err
    answers = json.loads(told)["queries"][0]["answers"]
    assert answers[0]["document"] == 5 and answers[0]["source"] == "papers.jsonl row 6"
    code, told, err = run(
        capsys, monkeypatch, "search", out, "shock wave", "--drive", "870-evo", "--k", "2"
    )
    assert code == 0 and "plays 870-evo" in told, err
    words = ("plan", out, "--drive", "pm9a3", "--p95", "1 s", "--samples", "8", "--json")
    code, told, err = run(capsys, monkeypatch, *words)
    assert code == 0, err
    plan = json.loads(told)
    assert plan["best"]["p50_s"]["low"] <= plan["best"]["p50_s"]["value"]
    assert all(other["why"] for other in plan["others"])
    assert plan["checks"] == []


def test_a_checked_plan_is_in_the_ledger_and_widens_the_next(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    words = ("plan", folder, "--drive", "pm9a3", "--p95", "1 s", "--samples", "24")
    code, told, err = run(capsys, monkeypatch, *words, "--check", "--json")
    assert code == 0, err
    plan = json.loads(told)
    names = ["retrieve.rerank_" + name for name in ("p50", "p95", "memory", "hits")]
    assert [item["quantity"] for item in plan["checks"]] == names
    assert all(item["measured"] > 0 for item in plan["checks"][:3])
    assert 0 <= plan["checks"][3]["measured"] <= 1
    kept = past_checks("retrieve.rerank")
    assert [item.measurement.value for item in kept] == [
        item["measured"] for item in plan["checks"]
    ]
    code, told, err = run(capsys, monkeypatch, *words)
    assert code == 0 and "guessed early" in told, err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("search", "FOLDER"), "either a query or --queries"),
        (("search", "FOLDER", "heat", "--prefetch", "0"), "above 0"),
        (("search", "FOLDER", "heat", "--drive", "floppy"), "floppy"),
        (("search", "nowhere", "heat"), "no folder of token vectors"),
        (("search", "FOLDER", "--queries", "nothing.txt"), "cannot read queries"),
        (("plan", "FOLDER", "--samples", "3"), "--samples is 3"),
        (("plan", "FOLDER", "--p95", "soon"), "--p95"),
        (("plan", "FOLDER", "--drive", "pm9a3", "--samples", "23", "--check"), "24 are needed"),
        (("plan", "FOLDER", "--drive", "s3-standard", "--p95", "1 us"), "no design"),
        (("build", "nothing.jsonl", "--out", "OUT"), "nothing.jsonl"),
        (("build", "FOLDER/about.json", "--out", "OUT", "--words", "0"), "--words is 0"),
    ],
)
def test_wrong_words_are_refused(folder, tmp_path, capsys, monkeypatch, words, told):
    words = [
        word.replace("FOLDER", str(folder)).replace("OUT", str(tmp_path / "o")) for word in words
    ]
    code, out, err = run(capsys, monkeypatch, *words)
    assert code != 0 and told in out + err
    assert "Traceback" not in err


def test_a_folder_of_another_encoder_is_refused(folder, tmp_path):
    other = tmp_path / "other"
    build_folder(other, [("a", "heat flow"), ("b", "wave drag"), ("c", "heat drag")])
    (other / "encoder.pack").write_bytes((folder / "encoder.pack").read_bytes())
    with pytest.raises(DataError, match="was encoded by"):
        RerankFolder.open(other)
    with pytest.raises(DataError, match="no texts"):
        build_folder(tmp_path / "none", [])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--p95", "0 s"), "--p95 is 0, but must be above 0"),
        (("--recall-loss", "1"), "--recall-loss is 1, but must be from 0 to 0.99"),
        (("--depth", "0"), "--depth is 0"),
        (("--k", "0"), "--k is 0"),
        (("--samples", "7"), "--samples is 7"),
    ],
)
def test_options_of_a_plan_are_refused_before_anything_is_searched(
    folder, capsys, monkeypatch, words, told
):
    monkeypatch.setattr("steelyard.cli.retrieve.rerank.plan.profile_rerank", None)
    code, _, err = run(capsys, monkeypatch, "plan", folder, *words)
    assert code == 2
    assert told in err
