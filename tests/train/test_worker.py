import contextlib
import io
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from steelyard import errors
from steelyard.cost import eager_training_memory
from steelyard.data.shards import TokenShards
from steelyard.errors import BackendError, ConfigError
from steelyard.train import worker
from steelyard.train.trainer import train


@pytest.fixture(scope="module")
def process():
    """One training process for the file; each of its runs is a fork of its own."""
    with worker.TrainProcess() as started:
        yield started


@pytest.fixture
def shared(process, monkeypatch):
    monkeypatch.setattr(worker, "TrainProcess", lambda: contextlib.nullcontext(process))


def test_another_process_gives_the_same_losses_and_reports_each_step(
    config, data, tmp_path, shared
):
    config = replace(
        config, architecture=replace(config.architecture, vocab_size=300), eval_every=0
    )
    seen = []
    result = worker.train_in_subprocess(config, data, tmp_path / "apart", on_step=seen.append)
    here = train(config, TokenShards(data), tmp_path / "here")
    assert result.losses == here.losses == [progress.loss for progress in seen]
    assert 0 < result.peak_memory_bytes < 200 << 20


def test_measured_peak_is_what_the_tensors_need(config, data, tmp_path, process):
    wide = replace(
        config.architecture,
        hidden_size=96,
        num_heads=6,
        intermediate_size=256,
        num_layers=4,
        vocab_size=300,
    )
    config = replace(
        config,
        architecture=wide,
        batch_size=32,
        sequence_length=64,
        steps=4,
        warmup_steps=0,
        eval_every=0,
    )
    # In a process apart: what earlier tests left on the heap would count.
    result = process.train(config, data, tmp_path)
    forecast = eager_training_memory(wide, batch=32, sequence_length=64)
    assert result.peak_memory_bytes / forecast.total == pytest.approx(1, abs=0.15)
    assert result.resident_peak_bytes >= result.peak_memory_bytes


def test_error_of_the_child_keeps_its_class_and_the_next_run_works(
    config, data, tmp_path, process, shared
):
    process.start()
    child = process._child
    with pytest.raises(ConfigError, match="vocabulary of 300") as caught:
        worker.train_in_subprocess(config, data, tmp_path / "wrong")
    assert "vocab_size = 300" in caught.value.hint
    right = replace(config, architecture=replace(config.architecture, vocab_size=300))
    assert len(process.train(right, data, tmp_path / "right").losses) == config.steps
    assert process._child is child


def test_child_without_a_word_is_an_error(monkeypatch):
    class Child:
        stdout = io.StringIO("")

        def wait(self) -> int:
            return -9

    with pytest.raises(BackendError, match="out of memory"):
        worker._listen(Child(), None, io.StringIO("Traceback\nMemoryError"))  # pyright: ignore[reportArgumentType]


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


def test_a_run_does_not_outlive_a_call_that_was_interrupted(config, data, tmp_path, process):
    def stop(progress) -> None:
        raise InterruptedError

    process.start()
    child = process._child
    right = replace(config, architecture=replace(config.architecture, vocab_size=300))
    with pytest.raises(InterruptedError):
        process.train(right, data, tmp_path, on_step=stop)
    assert process._child is None and child.returncode is not None
