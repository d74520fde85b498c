import sys
from pathlib import Path

import numpy as np
import pytest

from steelyard.train.memory import PeakMemory


def _resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_peak_that_is_gone_is_still_seen():
    memory = PeakMemory("cpu")
    before = _resident_bytes()  # not earlier: the measurement begins by giving back what is free
    held = np.ones(20 << 20, dtype=np.uint8)
    gone = np.ones(40 << 20, dtype=np.uint8)
    del gone
    memory.settle()
    assert memory.peak_bytes() / (60 << 20) == pytest.approx(1, abs=0.1)
    more = np.ones(50 << 20, dtype=np.uint8)
    assert memory.peak_bytes() / (60 << 20) == pytest.approx(1, abs=0.1)
    # 70 MB where the place of what is gone is used again, 110 where something lies behind it.
    assert 63 << 20 < memory.resident_peak_bytes() < 118 << 20
    del more
    # What was freed stays until the run ends, and then goes back.
    assert _resident_bytes() - before > 60 << 20
    memory.release()
    assert _resident_bytes() - before < 30 << 20
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
