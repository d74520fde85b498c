"""One engine in a process of its own: what it holds in memory, and how fast it was made.

Run as `python -m benchmarks.serve._engine_memory MODEL CACHE POOL_BYTES`; prints one line of JSON.
"""

import json
import statistics
import sys
import threading
import time
from pathlib import Path

import torch

from steelyard.serve.build import load_model, make_engine
from steelyard.serve.engine import LLM
from steelyard.serve.options import EngineOptions
from steelyard.serve.running.native import draws, packed_cache, steps, trial
from steelyard.serve.running.pages import share_heap
from steelyard.serve.scheduling.params import SamplingParams

_LOADED = (draws, steps, trial)
"""Modules that the engine's process loads before a model."""
_OUTPUTS = 16
_ROUNDS = 7


def resident() -> tuple[float, float]:
    """Return the bytes this process holds now, and the most it held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return int(sizes["VmRSS"]) * 1024.0, int(sizes["VmHWM"]) * 1024.0


def _answer(llm: LLM, length: int) -> float:
    """Answer a prompt, and return the seconds per token after the first."""
    params = SamplingParams(max_tokens=_OUTPUTS, ignore_end=True)
    vocab = llm.model.architecture.vocab_size
    began = time.perf_counter()
    llm.generate([[token % vocab for token in range(length)]], params)
    return (time.perf_counter() - began) / _OUTPUTS


def _made(model: Path, options: EngineOptions) -> tuple[LLM, float]:
    """Make an engine, and return the seconds it took."""
    began = time.perf_counter()
    llm = make_engine(load_model(model, options, is_checked=True), options)
    return llm, time.perf_counter() - began


def main(model: Path, cache: Path, pool_bytes: int) -> dict[str, object]:
    """Make an engine, measure, and make it again from the cache."""
    share_heap()  # as the engine's process does
    packed_cache.cache_dir = lambda: cache
    torch.set_num_threads(2)
    options = EngineOptions(pool_bytes=pool_bytes)
    before, _ = resident()
    llm, made_s = _made(model, options)
    llm.runner.kv.zero_()  # all of the pool counts as used
    _answer(llm, 16)
    held, peak = resident()
    _answer(llm, 500)
    after_prompt, _ = resident()
    for thread in threading.enumerate():
        if thread.name == "keep-packed":
            thread.join()
    found: dict[str, object] = {
        "before": before,
        "pool": llm.runner.pool_bytes,
        "held": held,
        "peak": peak,
        "after_prompt": after_prompt,
        "made_s": made_s,
        "kernel": llm.runner.kernel,
        "weights": llm.runner.weights,
    }
    again, found["again_s"] = _made(model, options)
    found["is_mapped"] = str(cache) in Path("/proc/self/maps").read_text()
    ratios = []
    for _ in range(_ROUNDS):  # in turn: what disturbs the machine hits both
        packed, mapped = _answer(llm, 16), _answer(again, 16)
        ratios.append(mapped / packed)
    found["mapped_over_packed"] = statistics.median(ratios)
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
