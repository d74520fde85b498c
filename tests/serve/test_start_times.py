"""Timed starts of the engine: steps add up, and what was done ahead costs nothing."""

import json

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.errors import ConfigError
from steelyard.nn import checkpoint
from steelyard.serve.front.engine import start_times
from steelyard.serve.front.engine.stages import StartStages
from steelyard.serve.options import EngineOptions
from steelyard.sim.serverless.inference import STEPS


def test_stages_count_to_the_steps_and_waiting_processes_had_theirs_ahead():
    stages = {
        "interpreter": 1.0, "import torch": 2.0, "import steelyard": 3.0,
        "hashes": 4.0, "weights": 5.0, "tokenizer": 6.0, "engine": 7.0,
    }  # fmt: skip
    cold = start_times._steps(stages, 8.0, 30.0, is_warm=False)
    assert [cold[step] for step in STEPS] == [1.0, 5.0, 9.0, 21.0, 2.0]
    warm = start_times._steps(stages, 8.0, 23.0, is_warm=True)
    assert [warm[step] for step in STEPS] == [0.0, 0.0, 9.0, 21.0, 1.0]


def test_a_stage_does_not_begin_before_its_order():
    stages = StartStages()
    later_s = stages._last_s + 0.25
    while stages.seconds.get("hashes", -1) < 0:
        stages.end("hashes", not_before_s=later_s)
        stages._last_s = later_s - 0.25
    assert stages.seconds["hashes"] < 0.2


def test_dropped_pages_are_gone_and_read_ones_are_there(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(4 << 20))
    gone = start_times.drop_page_cache([path])
    path.read_bytes()
    there = start_times._absent_share([path])
    # A file system in memory keeps what it has.
    assert np.isnan(gone) or gone > 0.9 or gone == there == 0.0
    assert there == pytest.approx(0.0, abs=0.01)


def test_folders_without_weights_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="0 files of weights"):
        start_times.time_starts(tmp_path, EngineOptions())


@pytest.mark.slow
def test_the_verb_times_real_starts(tmp_path, capsys, model):
    checkpoint.save(model, tmp_path / "model")
    out = tmp_path / "starts.json"
    words = ["serve", "starts", str(tmp_path / "model"), "--rounds", "1", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    assert ended.value.code in (0, None)
    values = json.loads(capsys.readouterr().out)
    totals = {name: sum(steps.values()) for name, steps in values["mean_s"].items()}
    assert totals["dram"] < totals["cold"]
    assert out.exists()
