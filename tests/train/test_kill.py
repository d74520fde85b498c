import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from steelyard import config as configs
from steelyard.train import TrainResult
from steelyard.train.trainer import train

CHILD = Path(__file__).parent / "kill_child.py"


def _train_with_kills(directory: Path, kills: list[int]) -> None:
    """Run the child again and again, killing it some steps after each start."""
    for steps in kills:
        child = subprocess.Popen(
            [sys.executable, str(CHILD), str(directory)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        with child.stdout:
            for count, _ in enumerate(child.stdout, start=1):
                if count == steps:
                    os.kill(child.pid, signal.SIGKILL)
        code = child.wait()
        assert code == -signal.SIGKILL


def assert_same_bits(config, source, directory: Path, kills: list[int]) -> None:
    configs.dump(config, directory / "wanted.json")
    _train_with_kills(directory, kills)
    assert TrainResult.load(directory / "run") is None
    killed = train(config, source, directory / "run")
    whole = train(config, source, directory / "whole")
    assert killed.losses == whole.losses and killed.eval_losses == whole.eval_losses


def test_killed_run_continues_with_the_same_bits(config, source, tmp_path):
    assert_same_bits(replace(config, steps=20, checkpoint_every=3), source, tmp_path, [5, 11])


@pytest.mark.slow
def test_many_kills(config, source, tmp_path):
    rng = random.Random(1)
    assert_same_bits(
        replace(config, steps=200, checkpoint_every=2, eval_every=10),
        source,
        tmp_path,
        [rng.randint(1, 9) for _ in range(20)],
    )
