"""Indexes on this machine's processor: the choice by forecast beside measuring everything."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
from benchmarks.common import Check, ratio
from benchmarks.retrieve._sift_like import sift_like
from numpy.typing import NDArray

from steelyard.catalog.search_rates import SearchRates
from steelyard.parallel import torch_threads
from steelyard.retrieve import IVF, IVFPQ, IVFFastScan, IVFFlat
from steelyard.retrieve.calibration import measure_search_rates
from steelyard.retrieve.choosing import Chosen, IndexCandidate, choose_index
from steelyard.retrieve.tuning import recall_at

__all__ = ["choice_checks"]

_GOALS = (0.8, 0.9, 0.95)
_PROBES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
_FACTORS = (2, 4, 8, 16)
_K = 10
_ROUNDS, _APART_S = 12, 5.0
Floats = NDArray[np.float32]
Setting = tuple[str, int, int]


def choice_checks(quick: bool) -> list[Check]:
    """Build indexes of several kinds and cells, choose for three goals, and measure them all."""
    count, asked, cells = (20_000, 400, (64, 256)) if quick else (100_000, 1200, (256, 1024, 2048))
    made = sift_like(count + 2 * asked, seed=3)
    vectors, queries = made[:count], made[count:].astype(np.float32)
    with torch_threads(1):
        rates = measure_search_rates(builds=())
        print(f"calibrated in {rates.duration_s:.0f} s: {dict(rates.query_relative)}")
        began_s = time.perf_counter()
        indexes = _built(vectors, cells)
        print(f"{len(indexes)} indexes of {count:,} in {time.perf_counter() - began_s:.0f} s")
        exact = IVFFlat(vectors.shape[1], store="uint8")
        exact.add(vectors)
        truth = exact.search(queries, _K).ids
        everything = _exhaustive(indexes, queries[::2], truth[::2])
        chosen = {
            goal: choose_index(indexes, queries, truth, rates, recall=goal) for goal in _GOALS
        }
        checks = _goal_checks(chosen, everything, indexes, queries[::2])
        # A collection of its own: with few vectors every way is bound by what a call takes.
        del indexes, exact
        return [*checks, _rule_check(20_000 if quick else 1_000_000, asked, rates)]


def _goal_checks(
    chosen: dict[float, Chosen],
    everything: Sequence[tuple[float, float, str, int, int]],
    indexes: dict[str, IVF],
    queries: Floats,
) -> list[Check]:
    """Compare each choice with the best of all that was measured, and with its forecast."""
    bests = {goal: min(item for item in everything if item[1] >= goal) for goal in chosen}
    ways = {goal: (_setting(chosen[goal].best), bests[goal][2:]) for goal in chosen}
    pairs = _alternate(indexes, queries, ways)
    checks = []
    for goal, found in chosen.items():
        took_s = float(np.median([own for own, _ in pairs[goal]]))
        best = bests[goal]
        print(
            f"goal {goal:g}: chosen {_told(found.best)}, {took_s * 1e6:.1f} us in the middle of "
            f"{np.round([own * 1e6 for own, _ in pairs[goal]], 1).tolist()}, "
            f"{found.measurements} measurements; of {len(everything)} the best is {best[2:]} "
            f"({best[0] * 1e6:.1f} us, {best[1]:.3f}); unseen {found.heldout_recall:.4f} +- "
            f"{found.heldout_error:.4f}"
        )
        speed = ratio([other for _, other in pairs[goal]], [own for own, _ in pairs[goal]]).median
        apart = abs(took_s / found.best.forecast_s - 1)
        share, missed = found.measurements / len(everything), goal - found.heldout_recall
        checks += [
            Check(f"3 speed over the best of all, recall {goal:g}", speed, 0.9, "higher"),
            Check(f"3 measurements over all, recall {goal:g}", share, 0.2, "lower"),
            Check(f"3 error of the predicted rate, recall {goal:g}", apart, 0.15, "lower"),
            Check(f"3 recall missed on unseen queries, {goal:g}", missed, 0.0, "lower"),
        ]
    return checks


def _built(vectors: NDArray[np.uint8], cells: Sequence[int]) -> dict[str, IVF]:
    """Build one index of each kind for each number of cells, with the same centers."""
    found: dict[str, IVF] = {}
    for nlist in cells:
        first = IVFPQ(vectors.shape[1], nlist=nlist, rerank=8)
        first.train(vectors)
        whole = IVFFlat(vectors.shape[1], nlist=nlist)
        fast = IVFFastScan(vectors.shape[1], nlist=nlist, rerank=8)
        whole.centers = fast.centers = first.centers
        sample = vectors[:65_536].astype(np.float32)
        fast.codec.train_codes(sample, fast.centers, seed=0)
        for name, index in (("ivfpq", first), ("ivf", whole), ("fastscan", fast)):
            index.add(vectors)
            found[f"{name} {nlist}"] = index
    return found


def _exhaustive(
    indexes: dict[str, IVF], queries: Floats, truth: NDArray[np.int64]
) -> list[tuple[float, float, str, int, int]]:
    """Measure every setting: seconds of a query, recall, and the setting."""
    found = []
    for name, index in indexes.items():
        for nprobe in _PROBES:
            for factor in _FACTORS if index.rerank else (0,):
                took_s, ids = _timed(index, queries, nprobe, factor)
                found.append((took_s, float(recall_at(ids, truth).mean()), name, nprobe, factor))
    return found


def _timed(
    index: IVF, queries: Floats, nprobe: int, factor: int
) -> tuple[float, NDArray[np.int64]]:
    """Search every query by itself; return seconds of one and all numbers."""
    began_s = time.perf_counter()
    ids = [index.search(query, _K, nprobe=nprobe, rerank=factor).ids for query in queries]
    return (time.perf_counter() - began_s) / len(queries), np.concatenate(ids)


def _alternate(
    indexes: dict[str, IVF], queries: Floats, ways: Mapping[float, tuple[Setting, Setting]]
) -> dict[float, list[tuple[float, float]]]:
    """Time pairs of settings in turn, in rounds that lie seconds apart.

    The machine's speed changes by a third within a minute: a rate that is measured in one moment
    tells of the moment.
    """
    pairs: dict[float, list[tuple[float, float]]] = {goal: [] for goal in ways}
    for place in range(_ROUNDS):
        time.sleep(_APART_S if place else 0.0)
        for goal, (own, other) in ways.items():
            order = (own, other) if place % 2 else (other, own)
            took = {way: _timed(indexes[way[0]], queries, *way[1:])[0] for way in order}
            pairs[goal].append((took[own], took[other]))
    return pairs


def _setting(candidate: IndexCandidate) -> Setting:
    return candidate.index, candidate.nprobe, candidate.rerank


def _told(candidate: IndexCandidate) -> str:
    return (
        f"{candidate.index}, {candidate.nprobe} cells, {candidate.rerank} candidates "
        f"({candidate.recall:.3f}, predicted {candidate.forecast_s * 1e6:.1f} us)"
    )


def _rule_check(count: int, asked: int, rates: SearchRates) -> Check:
    """Compare the choice with the rule of thumb at the recall that the rule reaches."""
    made = sift_like(count + 2 * asked, seed=5)
    vectors, queries = made[:count], made[count:].astype(np.float32)
    nlist = round(4 * count**0.5)
    rule = IVFFlat(vectors.shape[1], nlist=nlist, nprobe=max(1, nlist // 100))
    rule.train(vectors)
    rule.add(vectors)
    exact = IVFFlat(vectors.shape[1], store="uint8")
    exact.add(vectors)
    truth = exact.search(queries, _K).ids
    _, ids = _timed(rule, queries[::2], rule.nprobe, 0)
    reached = float(recall_at(ids, truth[::2]).mean())
    indexes = _built(vectors, (nlist // 4,)) | _coded(vectors, rule)
    chosen = choose_index(indexes, queries, truth, rates, recall=reached)
    ways = {**indexes, "rule": rule}
    own, other = _setting(chosen.best), ("rule", rule.nprobe, 0)
    pairs = _alternate(ways, queries[::2], {reached: (own, other)})[reached]
    speed = ratio([other for _, other in pairs], [own for own, _ in pairs]).median
    print(
        f"rule of thumb of {count:,}, {nlist:,} cells, {rule.nprobe} looked into: {reached:.3f}, "
        f"{pairs[0][1] * 1e6:.1f} us; chosen {_told(chosen.best)}: {speed:.2f}x; unseen "
        f"{chosen.heldout_recall:.4f}"
    )
    return Check("4 speed over the rule of thumb at equal recall", speed, 1.5, "higher")


def _coded(vectors: NDArray[np.uint8], rule: IVF) -> dict[str, IVF]:
    """Build an index of half-byte codes with the centers of another one."""
    fast = IVFFastScan(rule.dim, nlist=rule.nlist, rerank=8)
    fast.centers = rule.centers
    fast.codec.train_codes(vectors[:65_536].astype(np.float32), fast.centers, seed=0)
    fast.add(vectors)
    return {f"fastscan {rule.nlist}": fast}
