import sys
from dataclasses import replace

import numpy as np
import pytest

from steelyard.cost import eager_training_memory
from steelyard.train.memory import PeakMemory
from steelyard.train.worker import train_in_subprocess


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_peak_that_is_gone_is_still_seen():
    memory = PeakMemory("cpu")
    held = np.ones(20 << 20, dtype=np.uint8)
    gone = np.ones(40 << 20, dtype=np.uint8)
    del gone
    memory.settle()
    assert memory.peak_bytes() / (60 << 20) == pytest.approx(1, abs=0.1)
    more = np.ones(50 << 20, dtype=np.uint8)
    assert memory.peak_bytes() / (60 << 20) == pytest.approx(1, abs=0.1)
    assert memory.resident_peak_bytes() / (70 << 20) == pytest.approx(1, abs=0.1)
    del more
    again = PeakMemory("cpu")
    assert again.peak_bytes() < 8 << 20
    assert held.sum() == 20 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_file_pages_do_not_count(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(30 << 20))
    memory = PeakMemory("cpu")
    mapped = np.memmap(path, dtype=np.uint8, mode="r")
    assert mapped.sum() == 0
    assert memory.peak_bytes() < 8 << 20


def test_measured_peak_is_what_the_tensors_need(config, data, tmp_path):
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
    result = train_in_subprocess(
        config, data, tmp_path
    )  # fresh: what earlier tests left on the heap would count
    forecast = eager_training_memory(wide, batch=32, sequence_length=64)
    assert result.peak_memory_bytes / forecast.total == pytest.approx(1, abs=0.15)
    assert result.resident_peak_bytes >= result.peak_memory_bytes
