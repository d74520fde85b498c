import json
from dataclasses import replace

import pytest

from steelyard.cli.main import main
from steelyard.plan.tradeoff.running import Bench
from steelyard.runs.store import RunStore


def called(capsys, *words):
    """Run a command; return its exit code and what it printed."""
    try:
        main(["plan", "tradeoff", *map(str, words)])
        code = 0
    except SystemExit as end:
        code = end.code or 0
    seen = capsys.readouterr()
    return code, seen.out, seen.err


@pytest.fixture
def folder(tiny, tmp_path):
    """A model with a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from steelyard.nn import checkpoint

    checkpoint.save(tiny, tmp_path / "model")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("some words that nobody asks about. " * 200)
    return tmp_path


def test_measured_then_explained_then_advised(folder, capsys, monkeypatch):
    out, store = folder / "out", folder / "runs"
    words = [folder / "model", "--out", out, "--text", folder / "text.txt", "--store", store]
    words += ["--lengths", 320, "--lengths", 400, "--questions", 1]
    words += ["--only", "dense", "--only", "KV int8"]
    code, _, err = called(capsys, "measure", *words)
    # A model of random weights answers nothing, and the comparison would mean nothing.
    assert code == 2 and "answers none of the questions" in err and not list(out.glob("*.json"))
    plain = Bench.quality

    def answered(self, chosen, seed):
        cell = plain(self, chosen, seed)
        return replace(cell, accuracy={task: [0.8, 0.2] for task in cell.accuracy})

    monkeypatch.setattr(Bench, "quality", answered)
    words[2] = out = folder / "out2"
    code, said, _ = called(capsys, "measure", *words, "--report", folder / "page.html")
    assert code == 0 and "Beaten by none" in said
    assert "Accuracy and performance over context" in (folder / "page.html").read_text()
    assert {item.name for item in RunStore.existing(store).list()} == {"dense", "KV int8"}
    code, said, _ = called(capsys, "explain", out, "KV int8", "--json")
    assert code == 0
    assert json.loads(said)["sentences"][1].startswith("Accuracy: 80.0% of the answers are right")
    code, said, _ = called(
        capsys, "recommend", "--measured", out, "--context", "320", "--drop", 0.0, "--json"
    )
    assert code == 0 and json.loads(said)["feasible"]
    code, said, _ = called(capsys, "recommend", "--measured", out, "--context", "32k", "--json")
    assert code == 1 and json.loads(said)["relax"].keys() == {"context"}
    record = RunStore.existing(store).get(RunStore.existing(store).list()[0].id)
    values = {item.quantity: item.value for item in record.measurements}
    assert record.kind == "tradeoff" and values["eval.recall"] == pytest.approx(0.8)


def test_predictions_name_what_must_be_measured(capsys):
    words = ["recommend", "--model", "llama-3-8b", "--machine", "H100-SXM5-80GB"]
    code, said, _ = called(capsys, *words, "--context", "32k", "--tpot", "20 ms")
    assert code == 0 and "must be measured" in said and "ntk-aware" in said
    code, said, _ = called(capsys, *words, "--context", "8k", "--tpot", "1 us")
    assert code == 1 and "Without the goal on tpot" in said


def test_options_that_say_nothing_together_are_refused(capsys, tmp_path):
    code, _, err = called(capsys, "recommend", "--model", "llama-3-8b", "--context", "8k")
    assert code == 2 and "neither --machine nor --measured" in err
    words = ["recommend", "--machine", "H100-SXM5-80GB", "--context", "8k"]
    code, _, err = called(capsys, *words)
    assert code == 2 and "either --model or --measured" in err
    code, _, err = called(capsys, "explain", tmp_path, "window")
    assert code == 2 and "holds no measured.json" in err
