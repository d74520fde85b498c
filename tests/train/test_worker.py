import io
from dataclasses import replace

import pytest

from steelyard import errors
from steelyard.errors import BackendError, ConfigError
from steelyard.train import worker

shards = pytest.importorskip("steelyard.data.shards")
text = pytest.importorskip("steelyard.data.text")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Shards of a little made-up text."""
    import numpy as np

    folder = tmp_path_factory.mktemp("text")
    words = ["steel", "yard", "weight", "balance", "small", "large", "beam", "hook", "load", "count"]
    rng = np.random.default_rng(0)
    sources = folder / "sources"
    sources.mkdir()
    for index in range(40):
        lines = [" ".join(rng.choice(words, 12)) + f" {index} {line}." for line in range(40)]
        (sources / f"{index}.txt").write_text("\n".join(lines))
    text.prepare([sources], folder / "shards", vocab_size=300, heldout_fraction=0.1)
    return folder / "shards"


def test_fresh_process_gives_the_same_losses_and_reports_each_step(config, data, tmp_path):
    from steelyard.train.trainer import train

    config = replace(config, architecture=replace(config.architecture, vocab_size=300), eval_every=0)
    seen = []
    result = worker.train_in_subprocess(config, data, tmp_path / "apart", on_step=seen.append)
    here = train(config, shards.TokenShards(data), tmp_path / "here")
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
        if name != "SteelyardWarning":
            error = worker._rebuild({"kind": name, "message": "m", "hint": "h"})
            assert type(error).__name__ == name and error.hint == "h"
