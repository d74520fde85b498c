"""The last line of an answer on a terminal: the next command, whole, and right when pasted."""

import contextlib
import io
import json
import re
import shlex

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.runs import Ledger, RunStore

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
ANSWERS = (
    "plan train --budget $5,000 --accelerator H100-SXM5-80GB --count 8",
    "plan fit llama-3.1-8b --use serve --weights bf16",
    "plan fit llama-3.1-70b --accelerator H100-SXM5-80GB --count 1 --use serve --weights bf16",
    "plan which --model llama-3.1-8b --rate 20",
    "cost train --model gpt2-xl --machine L40S",
    "cost optimal --model llama-2-13b --machine A100-SXM4-80GB --gemm 260TFLOP/s",
    "cost longcontext --model yi-34b --machine A100-SXM4-80GB",
    "laws fit runs.csv --bootstraps 0 --out law.json",
    "laws compare runs.csv --law chinchilla kaplan",
    "laws predict --published besiroglu2024 --at parameters=7B tokens=1.4T",
    "laws allocate --published besiroglu2024 --flops 1e21FLOP",
    "runs list",
    "runs check {run}",
    "runs ledger",
    "catalog list clusters",
    "catalog show bologna",
    "catalog show H100-SXM5-80GB",
)

MORE = (
    "plan train --budget 1e20FLOP --accelerator L40S --model 1B",
    "plan fit 7B --context 64k --use lora",
    "cost train --model llama-3-8b --machine L40S",
    "cost serve --model llama-3.1-8b --machine L40S",
    "laws fit runs.csv --bootstraps 0",
    "laws isoflop flops.csv",
    "laws theory",
    "runs compare {run} {run}",
    "runs show {run}",
    "catalog show Frontier",
    "catalog show llama-3.1-8b",
    "cost memory --model llama-3.1-8b --tensor 8",
    "laws registry",
    "catalog list",
    "plan which --model 1B --tokens 20B --count 8",
)
"""Further ones, of verbs whose line comes about in the same way."""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(words, out):
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0), ESCAPES.sub("", out.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with tables of runs, and a user's folder with a run that was checked."""
    place = tmp_path_factory.mktemp("day")
    size, flops = np.meshgrid(np.geomspace(1e7, 1e9, 7), np.geomspace(1e18, 1e20, 3))
    tokens = flops / 6 / size
    loss = 1.7 + 400 / size**0.34 + 410 / tokens**0.28
    rows = np.column_stack([size.ravel(), tokens.ravel(), loss.ravel(), flops.ravel()])
    lines = [",".join(map(repr, map(float, row))) for row in rows]
    (place / "flops.csv").write_text("\n".join(["parameters,tokens,loss,flops", *lines]))
    lines = [",".join(map(repr, map(float, row[:3]))) for row in rows]
    (place / "runs.csv").write_text("\n".join(["parameters,tokens,loss", *lines]))
    store = RunStore(place / "home" / "runs")
    forecast = Forecast.about(
        "train.step_time", 1.0, relative=0.2, provenance="derived", source="roofline"
    )
    measured = Measurement(quantity="train.step_time", value=1.1, machine="this-machine")
    with store.create("train", {}, seed=0) as kept:
        kept.forecast(forecast)
        kept.measure(measured)
    Ledger(store).record("cost.training_step", [Check(forecast, measured)], kept.id)
    (place / "run").write_text(kept.id)
    return place


@pytest.mark.parametrize(
    "words", [*ANSWERS, *(pytest.param(words, marks=pytest.mark.slow) for words in MORE)]
)
def test_the_next_command_is_whole_and_runs(words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("STEELYARD_HOME", str(folder / "home"))
    monkeypatch.setenv("COLUMNS", "40")
    asked = words.format(run=(folder / "run").read_text()).split()
    code, shown = run(asked, Terminal())
    assert code in (0, 1), shown
    last = shown.rstrip("\n").splitlines()[-1]
    assert last.startswith("next: steelyard "), shown
    following = shlex.split(last.removeprefix("next: steelyard "))
    assert following != asked
    code, shown = run(following, Terminal())
    # What is asked next may be infeasible, but never wrong.
    assert code in (0, 1), (following, shown)


def test_pipes_and_json_get_the_answer_alone(folder, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(folder / "home"))
    for words in ("catalog list sites", "plan which --model 1B --tokens 1B", "runs list"):
        assert "next:" not in run(words.split(), io.StringIO())[1]
        json.loads(run([*words.split(), "--json"], Terminal())[1])


def test_help_is_coloured_by_the_terminal_of_its_own_call(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    pages = []
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stdout", stream)
        with pytest.raises(SystemExit):
            main(["serve", "--help"])
        pages.append(stream.getvalue())
    assert "\x1b[" in pages[0] and "\x1b[" not in pages[1]
