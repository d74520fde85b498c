"""Latencies of re-ranking from a played drive and from the real one, beside their baselines."""

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._device_reads import device_read_bytes
from benchmarks.retrieve._token_documents import Queries
from benchmarks.retrieve._token_world import TokenWorld

from steelyard.catalog.storage import StorageTier
from steelyard.plan.retrieve.rerank import predict_rerank
from steelyard.retrieve.multivector import PrefetchedReranker, RerankTrace, ThrottledReader
from steelyard.retrieve.multivector.profile import profile_rerank
from steelyard.retrieve.multivector.readers import (
    MappedReader,
    MemoryReader,
    RecordReader,
    ThreadedReader,
)

PLAYED = StorageTier(
    name="1 GiB/s, 80 us",
    vendor="assumed",
    bytes_per_s=2**30,
    reads_per_s=262_144,
    first_byte_s=80e-6,
)
DEPTH, K, _WARM = 64, 10, 5


def latency_checks(world: TokenWorld, quick: bool) -> list[Check]:
    """Compare a played drive with memory, with prefetch and without."""
    queries = world.made.queries((30 if quick else 120) + _WARM, seed=13)
    with ExitStack() as stack:
        played = ThrottledReader(world.store, PLAYED, depth=DEPTH)
        ways = {
            name: stack.enter_context(_ranker(world, reader, share, rerank))
            for name, reader, share, rerank in (
                ("memory", MemoryReader(world.store), 1.0, 128),
                ("ours", played, 0.2, 128),
                ("late", played, 1.0, 128),
                ("late all", played, 1.0, 1000),
            )
        }
        traces = _traces(ways, queries, {})
        batches = _batches(ways, queries, 2 if quick else 6)
        balanced = _balanced_checks(world, played, quick)
    p50 = _medians(traces)
    hits = np.mean([trace.hit_rate for trace in traces["ours"]])
    print(
        f"p50 in ms: {_told(p50)}; {hits:.0%} guessed; 16 queries at once, each: "
        + _told({name: value / 16 for name, value in batches.items()})
    )
    return [
        Check("4 p50 over memory's", p50["ours"] / p50["memory"], 1.3, "lower"),
        *balanced,
        Check("4 p50 of all 1,000 late over ours", p50["late all"] / p50["ours"], 2.0, "higher"),
        Check("4 batch of 16 over memory's", batches["ours"] / batches["memory"], 1.3, "lower"),
    ]


def _balanced_checks(world: TokenWorld, played: ThrottledReader, quick: bool) -> list[Check]:
    """Prefetch where reads take about as long as the search, at the share that a plan chooses.

    Overlap alone can at most halve the time, and only with a guess that is always right and a
    search that need not begin first: what it could give here is printed and compared too.
    """
    nprobe = world.index.nlist // (2 if quick else 4)
    sample = world.made.queries(16 if quick else 30, seed=14)
    counts = (128, 250, 500, 1000)
    profile = profile_rerank(
        *(world.index, world.store, sample.texts, sample.tokens),
        reranks=counts,
        shares=(0.05, 0.1, 0.2, 0.3, 0.5, 1.0),
        nprobe=nprobe,
        rounds=1,
    )
    search_s = float(np.median(profile.early_s[-1]))
    read_s = {count: count / PLAYED.reads_per_s for count in counts}
    rerank = min(counts, key=lambda count: abs(np.log(read_s[count] / search_s)))
    share = min(
        profile.shares[:-1],
        key=lambda item: predict_rerank(profile, PLAYED, item, rerank, depth=DEPTH).p50_s.value,
    )
    queries = world.made.queries((30 if quick else 120) + _WARM, seed=15)
    ways = {
        name: _ranker(world, played, step, rerank, nprobe)
        for name, step in (("ours", share), ("late", 1.0))
    }
    traces = _traces(ways, queries, {})
    p50 = _medians(traces)
    search_s, late_s = (
        float(np.median([getattr(trace, name) for trace in traces["late"]]))
        for name in ("early_s", "late_s")
    )
    hits = float(np.mean([trace.hit_rate for trace in traces["ours"]]))
    least = max(search_s, share * search_s + late_s) + (1 - hits) * late_s
    gain, most = p50["late"] / p50["ours"], (search_s + late_s) / least
    print(
        f"{nprobe} cells, {rerank} ranked: search {search_s * 1e3:.2f}, late reads "
        f"{late_s * 1e3:.2f}, p50 {_told(p50)} ms; prefetch after {share:.0%}, {hits:.0%} guessed; "
        f"gain {gain:.2f} of {most:.2f} that overlap allows"
    )
    return [
        Check("4 p50 without prefetch over ours", gain, 2.0, "higher"),
        Check("4 gain over what overlap allows", gain / most, 0.9, "higher"),
    ]


def cold_checks(world: TokenWorld, quick: bool) -> list[Check]:
    """Compare reads from the real drive with a mapped file that is cold before each search."""
    queries = world.made.queries((20 if quick else 45) + _WARM, seed=8)
    mapped, kindly = MappedReader(world.store, random=False), MappedReader(world.store)
    with ExitStack() as stack:
        ways = {
            name: stack.enter_context(_ranker(world, reader, share, 128))
            for name, reader, share in (
                ("drive", ThreadedReader(world.store, depth=32), 0.2),
                ("mapped", mapped, 1.0),
                ("mapped at random", kindly, 1.0),
            )
        }

        def forget() -> None:
            # Pages stay where any map still holds them.
            for reader in (mapped, kindly):
                reader.forget(world.store)

        traces = _traces(ways, queries, dict.fromkeys(ways, forget))
        # By itself: a mapped file reads far more than was asked for.
        forget()
        begin = device_read_bytes()
        direct = _traces({"drive": ways["drive"]}, queries, {}, warm=0)
        device = device_read_bytes() - begin
    p50 = _medians(traces)
    asked = sum(trace.read_bytes for trace in direct["drive"])
    print(f"p50 in ms, nothing cached: {_told(p50)}; {device / asked:.2f} of what was asked for")
    return [
        # Below 1 something came from memory, and the comparison would be void.
        Check("4 bytes from the device over those asked for", device / asked, 0.99, "higher"),
        Check("4 p50 of a cold mapped file over ours", p50["mapped"] / p50["drive"], 3.0, "higher"),
        Check(
            "4 p50 of one mapped for random reads over ours",
            p50["mapped at random"] / p50["drive"],
            3.0,
            "higher",
        ),
    ]


def _ranker(
    world: TokenWorld, reader: RecordReader, share: float, rerank: int, nprobe: int = 0
) -> PrefetchedReranker:
    """Return a way to rank."""
    return PrefetchedReranker(
        world.index, world.store, reader=reader, prefetch_step=share, rerank=rerank, nprobe=nprobe
    )


def _traces(
    ways: dict[str, PrefetchedReranker],
    queries: Queries,
    before: dict[str, Callable[[], None]],
    warm: int = _WARM,
) -> dict[str, list[RerankTrace]]:
    """Search each query by each way; ways take turns in drawn orders, each with another query.

    A way that follows with the same query finds its cells in the processor's caches; one that
    always follows a way that reads much finds less there than others do.
    """
    found: dict[str, list[RerankTrace]] = {name: [] for name in ways}
    count, rng = len(queries.tokens), np.random.default_rng(0)
    apart = -(-count // len(ways))
    given = list(enumerate(ways.items()))
    for turn in range(count):
        for order, (name, way) in (given[n] for n in rng.permutation(len(given))):
            place = (turn + order * apart) % count
            if name in before:
                before[name]()
            own = queries.texts[place : place + 1], [queries.tokens[place]]
            trace = way.search(*own, K).trace
            # The first queries load kernels and start threads.
            if turn >= warm:
                found[name].append(trace)
    return found


def _medians(traces: dict[str, list[RerankTrace]]) -> dict[str, float]:
    """Return the median seconds of each way."""
    return {
        name: float(np.median([trace.total_s for trace in own])) for name, own in traces.items()
    }


def _told(seconds: dict[str, float]) -> str:
    """Return times in words."""
    return ", ".join(f"{name} {value * 1e3:.2f}" for name, value in seconds.items())


def _batches(
    ways: dict[str, PrefetchedReranker], queries: Queries, rounds: int
) -> dict[str, float]:
    """Return median seconds of 16 queries at once."""
    names = ("memory", "ours")
    found: dict[str, list[float]] = {name: [] for name in names}
    starts = [16 * turn % max(len(queries.tokens) - 16, 1) for turn in range(rounds + 1)]
    for turn in range(rounds + 1):
        # Neither always comes second, nor with the queries of the other.
        for order, name in enumerate(names if turn % 2 else names[::-1]):
            first = starts[(turn + order * (rounds // 2 + 1)) % len(starts)]
            part = queries.texts[first : first + 16], queries.tokens[first : first + 16]
            trace = ways[name].search(*part, K).trace
            found[name] += [trace.total_s] if turn else []
    return {name: float(np.median(values)) for name, values in found.items()}
