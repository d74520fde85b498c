"""Forecasts of re-ranking beside measurements: grids of designs on played drives.

What forecasts are off by is found on designs of other shares and other numbers of documents than
those that are judged, with other queries, and before: tries and measurements both go round by round
through all drives, so that each sees some minutes of the machine.
"""

import time
from dataclasses import dataclass, field

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._rerank_latency import DEPTH, PLAYED, K
from benchmarks.retrieve._token_documents import Queries
from benchmarks.retrieve._token_world import TokenWorld
from numpy.typing import NDArray

from steelyard.catalog import storage_tier
from steelyard.catalog.storage import StorageTier
from steelyard.plan.retrieve.rerank import RerankDesign, predict_rerank
from steelyard.plan.retrieve.rerank_check import RerankTries
from steelyard.retrieve.multivector import PrefetchedReranker, ThrottledReader
from steelyard.retrieve.multivector.profile import RerankProfile, profile_rerank

_SHARES, _RERANKS = (0.1, 0.2, 0.3), (32, 64, 128)
_TRIED_SHARES, _TRIED_RERANKS = (0.15, 0.25, 1.0), (24, 96, 160)
_PACED = 12
_KEPT_ASIDE = 2105
"""Seed of the queries that forecasts are judged by."""


@dataclass(kw_only=True)
class Grid:
    """Designs on one drive with one width of the search.

    Attributes:
        drive: what is played.
        nprobe: cells that a query looks into.
        profile: of that width.
        tries: of other designs.
        designs: forecasts of those that are judged.
        took_s: measured seconds of each.
        paces_s: seconds of plain searches amid the tries, and amid what is judged.
    """

    drive: StorageTier
    nprobe: int
    profile: RerankProfile
    tries: RerankTries
    designs: list[RerankDesign] = field(default_factory=list)
    took_s: list[list[float]] = field(default_factory=list)
    paces_s: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def pace(self, world: TokenWorld, queries: Queries, *, is_judged: bool) -> None:
        """Search for candidates alone: what that takes says how fast the machine is now."""
        for place in range(_PACED):
            begin_s = time.perf_counter()
            world.index.search(queries.texts[place : place + 1], _RERANKS[-1], nprobe=self.nprobe)
            self.paces_s[is_judged].append(time.perf_counter() - begin_s)

    @property
    def slower_s(self) -> float:
        """Seconds that a search took longer amid what is judged than amid the tries."""
        tried_s, judged_s = map(np.median, self.paces_s)
        return float(judged_s - tried_s)

    def forecast(self) -> None:
        """Forecast the designs by the profile and the tries so far."""
        errors = self.tries.errors()
        print(
            f"{self.drive.name}, {self.nprobe} cells: measured over forecast p50 "
            f"{np.round(errors.p50, 2).tolist()}, {errors.drift:.1%} from round to round"
        )
        self.designs = [
            predict_rerank(self.profile, self.drive, share, rerank, depth=DEPTH, errors=errors)
            for share in _SHARES
            for rerank in _RERANKS
        ]
        self.took_s = [[] for _ in self.designs]

    def measure(self, world: TokenWorld, reader: ThrottledReader, asked: Queries) -> None:
        """Search all queries with each design, one design after the other; the first one warms."""
        for design, took_s in zip(self.designs, self.took_s, strict=True):
            reranker = PrefetchedReranker(
                world.index,
                world.store,
                reader=reader,
                prefetch_step=design.prefetch_step,
                rerank=design.rerank,
                nprobe=self.nprobe,
            )
            traces = [
                reranker.search(asked.texts[place : place + 1], [tokens], K).trace
                for place, tokens in enumerate(asked.tokens)
            ]
            took_s += [trace.total_s for trace in traces[1:]]


def planner_checks(world: TokenWorld, quick: bool) -> list[Check]:
    """Forecast grids of designs from one profile each, then measure them with other queries."""
    drives = [PLAYED] if quick else [PLAYED, storage_tier("870-evo"), storage_tier("pm9a3")]
    probes = [world.index.nprobe] if quick else [world.index.nprobe, world.index.nprobe // 2]
    grids = _grids(world, drives, probes, quick)
    for _ in range(4 if quick else 8):
        for grid in grids:
            grid.tries.round()
    for grid in grids:
        grid.forecast()
        grid.tries.close()
    asked = world.made.queries(20 if quick else 90, seed=_KEPT_ASIDE)
    readers = [ThrottledReader(world.store, grid.drive, depth=DEPTH) for grid in grids]
    parts = 2 if quick else 4
    for part in range(parts):
        own = Queries(
            asked.texts[part::parts], asked.tokens[part::parts], asked.sources[part::parts]
        )
        for grid, reader in zip(grids, readers, strict=True):
            grid.measure(world, reader, own)
    for reader in readers:
        # A map that is still there would keep pages in memory that later checks want cold.
        reader.close()
    return _judged(grids, world.index.nprobe)


def _grids(
    world: TokenWorld, drives: list[StorageTier], probes: list[int], quick: bool
) -> list[Grid]:
    """Profile each width of the search, and prepare tries on each drive."""
    profiled, tried = (
        world.made.queries(count, seed=seed)
        for count, seed in ((16 if quick else 60, 4), (16 if quick else 40, 16))
    )
    designs = [(share, rerank) for share in _TRIED_SHARES for rerank in _TRIED_RERANKS]
    found = []
    for nprobe in probes:
        profile = profile_rerank(
            *(world.index, world.store, profiled.texts, profiled.tokens),
            reranks=(*_RERANKS, *_TRIED_RERANKS),
            shares=(*_SHARES, *_TRIED_SHARES),
            nprobe=nprobe,
            rounds=1 if quick else 3,
        )
        for drive in drives:
            tries = RerankTries(
                *(profile, world.index, world.store, tried.texts, tried.tokens, drive),
                designs=designs,
                depth=DEPTH,
            )
            found.append(Grid(drive=drive, nprobe=nprobe, profile=profile, tries=tries))
    return found


def _judged(grids: list[Grid], nprobe: int) -> list[Check]:
    """Compare forecasts with what was measured."""
    cells = [
        (grid, design, *np.percentile(own_s, [50, 95]))
        for grid in grids
        for design, own_s in zip(grid.designs, grid.took_s, strict=True)
    ]
    is_grid = np.array([own.drive is PLAYED and own.nprobe == nprobe for own, *_ in cells])
    for place in np.flatnonzero(is_grid):
        _, design, p50, p95 = cells[place]
        told = design.p50_s
        print(
            f"prefetch after {design.prefetch_step:.0%}, {design.rerank:>3} ranked: p50 "
            f"{told.value * 1e3:.2f} ({told.low * 1e3:.2f} to {told.high * 1e3:.2f}), measured "
            f"{p50 * 1e3:.2f} ms; p95 {design.p95_s.value * 1e3:.2f}, measured "
            f"{p95 * 1e3:.2f}; {design.hit_rate:.0%} guessed"
        )
    errors, paced = (
        np.array([item.p50_s.value / (p50 - off * own.slower_s) - 1 for own, item, p50, _ in cells])
        for off in (0, 1)
    )
    inside = np.array([item.p50_s.low <= p50 <= item.p50_s.high for _, item, p50, _ in cells])
    tails = np.array([design.p95_s.value / p95 - 1 for _, design, _, p95 in cells])
    _print_grids(grids, errors, paced, inside)
    print(
        f"{len(cells)} designs: p50 off by {np.median(np.abs(errors)):.1%} in the middle, p95 by "
        f"{np.median(np.abs(tails)):.1%}; {inside.mean():.0%} inside the 80 % interval"
    )
    worst, at_pace = (float(np.abs(own[is_grid]).max()) for own in (errors, paced))
    checks = [
        Check("3 p50 off, worst of 3 x 3", worst, 0.15, "lower"),
        Check("3 the same, at equal speed of the machine", at_pace, 0.15, "lower"),
    ]
    if len(cells) >= 50:
        widths = [
            (item.p50_s.high - item.p50_s.low) / 2 / item.p50_s.value for _, item, *_ in cells
        ]
        width = float(np.median(widths) / np.median(np.abs(errors)))
        checks += [
            Check("3 p50 inside the 80 % interval, least", float(inside.mean()), 0.7, "higher"),
            Check("3 p50 inside the 80 % interval, most", float(inside.mean()), 0.9, "lower"),
            Check("3 half-width over the median error", width, 2.5, "lower"),
        ]
    return checks


def _print_grids(
    grids: list[Grid],
    errors: NDArray[np.float64],
    paced: NDArray[np.float64],
    inside: NDArray[np.bool_],
) -> None:
    """Say for each grid how far off it was, and how much the machine's speed changed."""
    columns = (values.reshape(len(grids), -1) for values in (errors, paced, inside))
    for grid, off, at_pace, held in zip(grids, *columns, strict=True):
        tried_s, judged_s = map(np.median, grid.paces_s)
        print(
            f"{grid.drive.name}, {grid.nprobe} cells: forecast p50 off by {np.median(off):+.1%} in "
            f"the middle, {np.abs(off).max():.1%} at most ({np.abs(at_pace).max():.1%} at equal "
            f"speed: a search took {tried_s * 1e3:.2f} ms amid the tries, {judged_s * 1e3:.2f} "
            f"then); {held.mean():.0%} inside"
        )
