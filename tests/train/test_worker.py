import io
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from steelyard import errors
from steelyard.data.shards import TokenShards
from steelyard.errors import BackendError, ConfigError
from steelyard.train import worker


def test_fresh_process_gives_the_same_losses_and_reports_each_step(config, data, tmp_path):
    from steelyard.train.trainer import train

    config = replace(
        config, architecture=replace(config.architecture, vocab_size=300), eval_every=0
    )
    seen = []
    result = worker.train_in_subprocess(config, data, tmp_path / "apart", on_step=seen.append)
    here = train(config, TokenShards(data), tmp_path / "here")
    assert result.losses == here.losses == [progress.loss for progress in seen]
    assert 0 < result.peak_memory_bytes < 200 << 20


def test_error_of_the_child_keeps_its_class(config, data, tmp_path):
    with pytest.raises(ConfigError, match="vocabulary of 300") as caught:
        worker.train_in_subprocess(config, data, tmp_path)
    assert "vocab_size = 300" in caught.value.hint


def test_child_without_a_word_is_an_error(monkeypatch):
    class Child:
        stdout = io.StringIO("")

        def wait(self) -> int:
            return -9

    with pytest.raises(BackendError, match="out of memory"):
        worker._listen(Child(), None, io.StringIO("Traceback\nMemoryError"))  # pyright: ignore[reportArgumentType]


def test_one_process_trains_run_after_run_also_behind_an_error(config, data, tmp_path):
    right = replace(config, architecture=replace(config.architecture, vocab_size=300))
    with worker.TrainProcess() as process:
        one = process.train(right, data, tmp_path / "one")
        child = process._child
        with pytest.raises(ConfigError, match="vocabulary of 300"):
            process.train(config, data, tmp_path / "wrong")
        two = process.train(replace(right, seed=9), data, tmp_path / "two")
        assert process._child is child and one.losses != two.losses

        def stop(progress) -> None:
            raise InterruptedError

        with pytest.raises(InterruptedError):
            process.train(replace(right, seed=10), data, tmp_path / "three", on_step=stop)
        assert process._child is None and child.returncode is not None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux only")
def test_killed_fork_is_an_error_and_the_next_run_works(config, data, tmp_path):
    config = replace(config, architecture=replace(config.architecture, vocab_size=300), steps=40)

    def kill(progress) -> None:
        if progress.step == 2:
            server = process._child.pid
            (fork,) = Path(f"/proc/{server}/task/{server}/children").read_text().split()
            os.kill(int(fork), signal.SIGKILL)

    with worker.TrainProcess() as process:
        with pytest.raises(BackendError, match="code -9"):
            process.train(config, data, tmp_path / "run", on_step=kill)
        assert len(process.train(config, data, tmp_path / "run").losses) == 40


def test_every_error_class_can_be_rebuilt():
    for name in errors.__all__:
        if name.endswith("Error"):
            error = worker._rebuild({"kind": name, "message": "m", "hint": "h"})
            assert type(error).__name__ == name and error.hint == "h"
