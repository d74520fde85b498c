import io
from dataclasses import replace

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


def test_every_error_class_can_be_rebuilt():
    for name in errors.__all__:
        if name.endswith("Error"):
            error = worker._rebuild({"kind": name, "message": "m", "hint": "h"})
            assert type(error).__name__ == name and error.hint == "h"
