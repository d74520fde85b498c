"""Real nodes that are killed under load, and rebuilds over shaped links.

`python -m benchmarks.operate._shard_kills kills rebuilds batches` measures what takes time, while
nothing else runs; a full run of the benchmark then finds it.
"""

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.operate._redis_reads import RedisReader, redis_binary, redis_server
from benchmarks.operate._shard_cells import kept

from steelyard.errors import StoreError
from steelyard.operate.shards.cluster import ShardCluster, StoreOptions
from steelyard.operate.shards.policy import Adaptive

WIDTH = 128
KILLS, MEGABYTES = 20, 100.0
_BATCH_KEYS = 100_000
_READ_LIMIT_S = 1.0
"""A read that takes longer counts as failed."""


def values_of(keys: np.ndarray, salts: np.ndarray) -> np.ndarray:
    """Return values that tell key and salt."""
    values = np.zeros((len(keys), WIDTH), np.uint8)
    values[:, :8] = keys.astype(np.uint64).view(np.uint8).reshape(-1, 8)
    values[:, 8:16] = salts.astype(np.uint64).view(np.uint8).reshape(-1, 8)
    return values


@dataclass
class Load:
    """One reader and one writer, and what they saw."""

    cluster: ShardCluster
    num_keys: int
    salts: np.ndarray = field(init=False)
    reads: int = 0
    failed: int = 0
    wrong: int = 0
    writes: int = 0

    def __post_init__(self) -> None:
        self.salts = np.zeros(self.num_keys, np.int64)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._read, self._write)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        """Read batches of 16; what was acknowledged before has to be there."""
        generator = np.random.default_rng(1)
        self.cluster.client()._deadline_s = _READ_LIMIT_S
        while not self._stop.is_set():
            keys = generator.integers(0, self.num_keys, 16).astype(np.uint64)
            least = self.salts[keys.astype(np.int64)].copy()
            begin_s = time.monotonic()
            self.reads += len(keys)
            try:
                lengths, values = self.cluster.get(keys)
            except StoreError:
                self.failed += len(keys)
                continue
            if time.monotonic() - begin_s > _READ_LIMIT_S:
                self.failed += len(keys)
            seen = np.ascontiguousarray(values[:, 8:16]).view(np.int64)[:, 0]
            self.wrong += int(((lengths != WIDTH) | (seen < least)).sum())

    def _write(self) -> None:
        """Write batches of 8 and remember what was acknowledged."""
        generator = np.random.default_rng(2)
        salt = 0
        while not self._stop.is_set():
            salt += 1
            keys = generator.choice(self.num_keys, 8, replace=False).astype(np.uint64)
            try:
                self.cluster.put(keys, values_of(keys, np.full(8, salt)))
            except StoreError:
                continue
            self.salts[keys.astype(np.int64)] = salt
            self.writes += len(keys)


def kill_under_load(kills: int) -> dict[str, float]:
    """Kill one of four nodes again and again while rows are read and written."""
    num_keys = 20_000
    folder = Path(tempfile.mkdtemp(prefix="steelyard-kills-"))
    options = StoreOptions(row_bytes=WIDTH, shards=32, keys=num_keys, capacity=32_768)
    seconds = []
    try:
        with ShardCluster(nodes=4, store=folder, options=options) as cluster:
            keys = np.arange(num_keys, dtype=np.uint64)
            for start in range(0, num_keys, 2000):
                part = keys[start : start + 2000]
                cluster.put(part, values_of(part, np.zeros(len(part))))
            with Load(cluster, num_keys) as load:
                for number in range(kills):
                    name = f"n{number % 4}"
                    begin_s = time.monotonic()
                    cluster.kill(name)
                    cluster.wait_dead(name)
                    cluster.wait_whole()
                    seconds.append(time.monotonic() - begin_s)
                    cluster.start(name)
                    cluster.wait_whole()
            _, found = cluster.get(keys)
            seen = np.ascontiguousarray(found[:, 8:16]).view(np.int64)[:, 0]
            lost = int((seen < load.salts).sum())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "lost": float(lost + load.wrong),
        "reads": float(load.reads),
        "available": 1 - load.failed / max(1, load.reads),
        "writes": float(load.writes),
        "whole_s": float(np.median(seconds)),
    }


def rebuild_s(regenerate: bool, *, megabytes: float, rate: float = 20e6) -> tuple[float, float]:
    """Kill one of eight nodes whose link and disk pass `rate` bytes a second.

    Args:
        regenerate: all survivors rebuild a share; else one spare, empty, node rebuilds everything.
        megabytes: rows of each node.
        rate: bytes per second.

    Returns:
        Seconds from the kill until every shard has its copies, and from when it was known dead.
    """
    width, nodes = 1000, 8
    num_keys = int(megabytes * 1e6 * nodes / 2 / width)
    folder = Path(tempfile.mkdtemp(prefix="steelyard-rebuild-"))
    policy = Adaptive(
        regenerate=regenerate, balance=False, temporal=False, replicate=False, predict=False
    )
    options = StoreOptions(
        row_bytes=width,
        shards=112,
        keys=num_keys,
        bytes_per_s=rate,
        capacity=int(2.5 * num_keys * 2 / nodes),
    )
    try:
        with ShardCluster(nodes=nodes, store=folder, policy=policy, options=options) as cluster:
            cluster.client()._deadline_s = 60.0
            for start in range(0, num_keys, 1000):
                keys = np.arange(start, min(start + 1000, num_keys), dtype=np.uint64)
                cluster.put(keys, np.full((len(keys), width), start % 251, np.uint8))
            if not regenerate:
                cluster.start("spare")
                time.sleep(1.0)
            begin_s = time.monotonic()
            cluster.kill("n0")
            cluster.wait_dead("n0")
            known_s = time.monotonic()
            cluster.wait_whole(120.0)
            return time.monotonic() - begin_s, time.monotonic() - known_s
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def batch_rates(rounds: int = 7) -> dict[str, float]:
    """Measure rows read per second from one node and from redis-server, in turns in one run.

    Args:
        rounds: times that each is measured.

    Returns:
        Medians by "ROWS" of a batch and, where there is a redis-server, "ROWS redis"; and "ROWS
        ratio", the median of the rounds' ratios, with "ROWS least" and "ROWS most".
    """
    folder = Path(tempfile.mkdtemp(prefix="steelyard-batch-"))
    options = StoreOptions(row_bytes=WIDTH, shards=1, keys=_BATCH_KEYS, capacity=131_072)
    binary = redis_binary()
    try:
        with (
            ShardCluster(nodes=1, store=folder, options=options) as cluster,
            ExitStack() as stack,
        ):
            readers: dict[str, Any] = {"ours": cluster}
            if binary:
                readers["redis"] = RedisReader(stack.enter_context(redis_server(binary)), WIDTH)
                stack.callback(readers["redis"].close)
            for start in range(0, _BATCH_KEYS, 4000):
                part = np.arange(start, start + 4000, dtype=np.uint64)
                for reader in readers.values():
                    reader.put(part, values_of(part, np.zeros(len(part))))
            return _rates(readers, rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rates(readers: dict[str, Any], rounds: int) -> dict[str, float]:
    """Read batches from each in turns."""
    generator, found = np.random.default_rng(0), {}
    for rows in (1, 16, 256):
        rates: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(rounds):
            batches = [
                generator.integers(0, _BATCH_KEYS, rows).astype(np.uint64) for _ in range(200)
            ]
            for name, reader in readers.items():
                begin_s = time.perf_counter()
                for batch in batches:
                    reader.get(batch)
                rates[name].append(rows * len(batches) / (time.perf_counter() - begin_s))
        found[str(rows)] = float(np.median(rates["ours"]))
        if "redis" in rates:
            ratios = np.array(rates["ours"]) / np.array(rates["redis"])
            found[f"{rows} redis"] = float(np.median(rates["redis"]))
            found[f"{rows} ratio"] = float(np.median(ratios))
            found[f"{rows} least"], found[f"{rows} most"] = float(ratios.min()), float(ratios.max())
    return found


def rebuilds() -> dict[str, float]:
    """Rebuild to one spare, then to all survivors, in one run: their ratio is asked for."""
    spare = rebuild_s(False, megabytes=MEGABYTES)
    shared = rebuild_s(True, megabytes=MEGABYTES)
    return {
        "spare_s": spare[0],
        "spare_known_s": spare[1],
        "shared_s": shared[0],
        "shared_known_s": shared[1],
    }


PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "kills": lambda: kill_under_load(KILLS),
    "rebuilds": rebuilds,
    "batches": batch_rates,
}
"""What takes time, by name: each is measured while nothing else runs."""


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, kept(name, PARTS[name]), flush=True)
