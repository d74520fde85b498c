"""Transfers without the engine: bandwidth on an idle machine, bytes that reuse saves."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from benchmarks.common import median_spread
from benchmarks.serve._conversations import Conversation, ConversationLoad
from benchmarks.serve._drawn_order import RandomPriorities

from steelyard.data.tiers.transfers import Transfer
from steelyard.serve import Scheduler, SchedulerConfig
from steelyard.serve.kv.tiers import TieredKV, make_store

__all__ = ["bandwidth_shares", "reuse_share"]

_MOST_BYTES = 192 * 2**20


def bandwidth_shares(
    ours: list[Transfer],
    baseline: list[Transfer],
    folder: Path,
    shape: tuple[int, ...],
    *,
    rounds: int,
) -> tuple[float, float]:
    """Replay transfers of both sides alone and compare them with runs of 32 blocks (8 MB).

    Args:
        ours: transfers of runs.
        baseline: transfers of single blocks.
        folder: folder of the tier's file.
        shape: shape of the pool.
        rounds: the three are timed in turn so often.

    Returns:
        Median bandwidth over that of large blocks, of ours and of the baseline.
    """
    kv = torch.randn(shape)
    large = [
        Transfer(id=index, request_id="", direction=direction, runs=np.array([[start, start, 32]]))
        for direction in ("out", "in")
        for index, start in enumerate(range(0, shape[2] - 31, 32))
    ]
    store = make_store(kv, 4096, folder)
    sides = {
        "runs": (TieredKV(kv, store), ours),
        "blocks": (TieredKV(kv, store, grouped=False), baseline),
        "large": (TieredKV(kv, store), large),
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds + 1):
        for name, (tiers, transfers) in sides.items():
            speed = _speed(
                tiers,
                _sample(
                    transfers,
                    kv.nbytes // shape[2],
                    index,
                    _MOST_BYTES // (8 if name == "blocks" else 1),
                ),
            )
            if index:
                speeds[name].append(speed)
    for name, values in speeds.items():
        spread = median_spread([value / 1e6 for value in values])
        print(
            f"bandwidth of {name:6s} alone {spread.median:6.0f} MB/s  [{spread.low:.0f}, "
            f"{spread.high:.0f}]"
        )
    sides["runs"][0].close()
    reference = np.median(speeds["large"])
    return float(np.median(speeds["runs"]) / reference), float(
        np.median(speeds["blocks"]) / reference
    )


def _sample(
    transfers: list[Transfer], block_bytes: int, seed: int, most_bytes: int
) -> list[Transfer]:
    """Take transfers by chance until they are so many bytes."""
    order = np.random.default_rng(seed).permutation(len(transfers))
    sizes = np.array([transfers[index].runs[:, 2].sum() for index in order]) * block_bytes
    count = int(np.searchsorted(np.cumsum(sizes), most_bytes)) + 1
    return [replace(transfers[index], id=row) for row, index in enumerate(order[:count])]


def _speed(tiers: TieredKV, transfers: list[Transfer]) -> float:
    """Return bytes per second of both directions, one after the other."""
    seconds, before = 0.0, tiers.stats("out").num_bytes + tiers.stats("in").num_bytes
    for direction in ("out", "in"):
        part = [item for item in transfers if item.direction == direction]
        start = time.perf_counter()
        tiers.submit(part)
        tiers.wait([item.id for item in part])
        seconds += time.perf_counter() - start
        tiers.landed()
    return (tiers.stats("out").num_bytes + tiers.stats("in").num_bytes - before) / seconds


def reuse_share(conversations: list[Conversation], config: SchedulerConfig) -> float:
    """Run the scheduler in virtual time with and without reuse of host copies.

    Args:
        conversations: the load.
        config: limits with reuse.

    Returns:
        Blocks sent to the host with reuse over those without.
    """
    sent = {
        reuse: _dry_run(conversations, replace(config, reuse_host_copies=reuse))
        for reuse in (True, False)
    }
    print(f"blocks swapped out in virtual time: {sent[True]} with reuse, {sent[False]} without")
    return sent[True] / sent[False]


def _dry_run(
    conversations: list[Conversation], config: SchedulerConfig, *, step_s: float = 0.01
) -> int:
    """Return the blocks sent out when steps take equal times and transfers land with the next."""
    scheduler = Scheduler(config, policy=RandomPriorities(seed=1))
    load = ConversationLoad(conversations)
    now_s = 0.0
    sent = 0
    flying: list[int] = []
    while not load.is_done:
        for request in load.due(now_s):
            scheduler.add(request, now_s)
        scheduler.land(flying)
        plan = scheduler.schedule(now_s)
        flying = [item.id for item in plan.transfers] if plan else []
        now_s += step_s
        if plan is None:
            continue
        sent += sum(
            int(item.runs[:, 2].sum()) for item in plan.transfers if item.direction == "out"
        )
        if plan.num_tokens:
            for request in scheduler.complete(plan, plan.blank_output(), now_s):
                load.answered(request, now_s)
    return sent
