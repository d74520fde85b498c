"""Times starts of the engine on this machine, with more or less of each done ahead."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from steelyard.config import to_plain
from steelyard.errors import BackendError, ConfigError
from steelyard.frames import Channel, MessageCodec
from steelyard.serve.front.engine.spawn import SpawnedEngine
from steelyard.serve.front.engine.wire import Add, Drain, Failed, Ready, Start, Step, ToGateway
from steelyard.serve.options import EngineOptions
from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["drop_page_cache", "time_starts", "weight_files"]

_Message = TypeVar("_Message", Ready, Step)
_IDLE_S, _LONGEST_S = 0.4, 120.0
"""A process that used no processor for so long waits for its orders; longest wait for that."""
_STEP_OF = {
    "interpreter": "scaler_pre",
    "import torch": "te_pre_load",
    "import steelyard": "te_pre_load",
    "hashes": "te_load",
    "weights": "te_load",
    "tokenizer": "te_post_load",
    "engine": "te_post_load",
}
"""Step of `sim.serverless.inference.STEPS` to which each stage of a start counts."""


def weight_files(model: Path) -> list[Path]:
    """Return the files that hold a model's weights: those of a folder, or a GGUF file itself."""
    if model.is_file():
        return [model]
    return sorted(
        path for path in model.iterdir() if path.suffix in (".safetensors", ".gguf", ".bin")
    )


def drop_page_cache(paths: list[Path]) -> float:
    """Ask the system to forget what it holds of files in memory.

    Args:
        paths: files; pages that a process maps stay.

    Returns:
        Share of their pages that are gone, where the system tells; else NaN.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # a page that was not written yet cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return _absent_share(paths)


def _absent_share(paths: list[Path]) -> float:
    """Return the share of the files' pages that are not in memory."""
    import ctypes
    import mmap

    import numpy as np

    libc = ctypes.CDLL(None, use_errno=True)
    pages = present = 0
    for path in paths:
        size = path.stat().st_size
        if not size:
            continue
        count = -(-size // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * count)()
        # A private mapping may be written, which its address can only be had of; nothing is.
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as area:
            held = ctypes.c_char.from_buffer(area)
            failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(held)), size, found)
            del held
        if failed:
            return float("nan")
        pages += count
        present += int((np.frombuffer(bytes(found), np.uint8) & 1).sum())
    return 1 - present / pages if pages else float("nan")


def time_starts(
    model: Path, options: EngineOptions, *, rounds: int = 5
) -> dict[str, dict[str, list[float]]]:
    """Start the engine again and again, and time each step up to its first token.

    Kinds of start take turns: a new process that reads its weights from storage, or finds them in
    the page cache; and a process that has imported everything and waits on its socket, with the
    same two. A process that finds them in the page cache maps the very pages of one that runs, so
    that a fork on one machine is that kind.

    Args:
        model: folder of a model, or a GGUF file.
        options: kind of engine.
        rounds: starts of each kind, at least 1; one more of each warms up and is not kept.

    Returns:
        Seconds by mechanism and step, as `sim.serverless.inference.EngineStarts.of_samples` takes
        them. The first token of a prompt of three counts to `te_post_load`.

    Raises:
        ConfigError: `rounds` is below 1, or the model has no file of weights.
        BackendError: the engine cannot start, or its page cache cannot be dropped.
    """
    files = weight_files(model)
    if rounds < 1 or not files:
        raise ConfigError(
            f"{rounds} rounds of starts with {len(files)} files of weights in {model}",
            hint="give at least one round, and a folder with safetensors or a GGUF file",
        )
    kinds = {
        "cold": (False, False),
        "cold-dram": (False, True),
        "pre-warmed": (True, False),
        "dram": (True, True),
    }
    found: dict[str, dict[str, list[float]]] = {name: {} for name in kinds}
    for turn in range(rounds + 1):
        for name, (is_warm, is_cached) in kinds.items():
            seconds = _start(model, options, files, is_warm=is_warm, is_cached=is_cached)
            for step, value in seconds.items() if turn else ():
                found[name].setdefault(step, []).append(value)
    return found


def _start(
    model: Path, options: EngineOptions, files: list[Path], *, is_warm: bool, is_cached: bool
) -> dict[str, float]:
    """Start an engine, ask it for one token and end it; return seconds by step."""
    if is_cached:
        for path in files:
            path.read_bytes()
    elif drop_page_cache(files) < 0.5:
        # Half, and not all: a system may keep some; with most of them there it would be no miss.
        raise BackendError(
            f"the page cache keeps the weights of {model}",
            hint="end processes that have them mapped",
        )
    begin_s = time.perf_counter()
    with _connected() as (channel, spawned):
        if is_warm:
            _wait_until_idle(spawned.process.pid)
            # The order begins now, and all that came before was done ahead.
            begin_s = time.perf_counter()
        channel.send(Start(str(model.resolve()), to_plain(options), spawned.began_s))
        ready = _expect(channel, Ready)
        ready_s = time.perf_counter()
        params = SamplingParams(max_tokens=1, ignore_end=True)
        channel.send(Add(0, [1, 2, 3], params, 0, "start", "", 1, ready_s))
        _expect(channel, Step)
        first_s = time.perf_counter()
        channel.send(Drain())
        spawned.process.wait()
    return _steps(ready.stages, first_s - ready_s, ready_s - begin_s, is_warm=is_warm)


def _steps(
    stages: dict[str, float], first_s: float, ready_s: float, *, is_warm: bool
) -> dict[str, float]:
    """Sum the stages of one start by step; what no stage has is the telling."""
    names = ("scaler_pre", "te_pre_load", "te_load", "te_post_load")
    steps: dict[str, float] = dict.fromkeys(names, 0.0)
    for name, seconds in stages.items():
        step = _STEP_OF[name]
        # What a waiting process had done before its order is not part of the start.
        if not (is_warm and step in ("scaler_pre", "te_pre_load")):
            steps[step] += seconds
    told_s = max(ready_s - sum(steps.values()), 0.0)
    return {**steps, "te_post_load": steps["te_post_load"] + first_s, "scaler_post": told_s}


@contextlib.contextmanager
def _connected() -> Iterator[tuple[Channel, SpawnedEngine]]:
    """Begin an engine's process and take its connection; it is ended in any case."""
    spawned = SpawnedEngine()
    try:
        spawned.listener.settimeout(_LONGEST_S)
        connection, _ = spawned.listener.accept()
        connection.settimeout(_LONGEST_S)
        with contextlib.closing(Channel(connection, MessageCodec(ToGateway))) as channel:
            yield channel, spawned
    finally:
        spawned.kill()


def _expect(channel: Channel, kind: type[_Message]) -> _Message:
    """Wait for a message of a kind; an engine that failed says why."""
    message = channel.receive()
    while not isinstance(message, kind):
        if message is None or isinstance(message, Failed):
            reason = message.message if message else "its process ended"
            raise BackendError(f"the engine cannot start: {reason}", hint="see its output above")
        message = channel.receive()
    return message


def _wait_until_idle(pid: int) -> None:
    """Wait until a process has stopped using the processor."""
    end_s = time.perf_counter() + _LONGEST_S
    used, since_s = -1, time.perf_counter()
    while time.perf_counter() - since_s < _IDLE_S:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        now = int(fields[11]) + int(fields[12])
        if now != used:
            used, since_s = now, time.perf_counter()
        if time.perf_counter() > end_s:
            raise BackendError(f"process {pid} does not come to rest", hint="try again")
        time.sleep(0.02)
