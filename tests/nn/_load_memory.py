"""Loads a folder and touches every parameter's pages.

It prints the peak of memory that this added, in bytes, and the seconds.
"""

import re
import sys
import time
from pathlib import Path

import torch

from steelyard.catalog.architecture import Architecture
from steelyard.nn import checkpoint
from steelyard.nn.transformer import build


def memory(field):
    """Read a memory field of this process, in bytes."""
    return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


torch.set_num_threads(1)
shape = {
    "hidden_size": 8,
    "num_layers": 1,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 8,
    "intermediate_size": 8,
}
build(
    Architecture(name="first", vocab_size=8, **shape), dtype=torch.bfloat16
)  # what torch imports on its first model is not counted
Path("/proc/self/clear_refs").write_text("5")
before, began = memory("VmRSS"), time.perf_counter()
model = checkpoint.load(sys.argv[1], dtype=None)
seconds = time.perf_counter() - began
total = sum(
    float(parameter.detach().flatten()[::2048].float().sum()) for parameter in model.parameters()
)
assert total == total
assert next(model.parameters()).dtype == torch.bfloat16
print(memory("VmHWM") - before, seconds)
