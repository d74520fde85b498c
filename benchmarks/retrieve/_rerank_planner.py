"""Forecasts of re-ranking beside measurements: grids of designs on played drives.

What forecasts are off by is found on designs of other shares and other numbers of documents than
those that are judged, with other queries, and before: tries go round by round through all drives,
so that each sees some minutes of the machine, and what is judged is measured in no order.
"""

import time
from dataclasses import dataclass, field

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._rerank_latency import DEPTH, PLAYED, K
from benchmarks.retrieve._token_documents import Queries
from benchmarks.retrieve._token_world import TokenWorld

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


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Designs on one drive with one width of the search.

    Attributes:
        drive: what is played.
        nprobe: cells that a query looks into.
        profile: of that width.
        tries: of other designs.
        paces_s: seconds of plain searches amid the tries.
    """

    drive: StorageTier
    nprobe: int
    profile: RerankProfile
    tries: RerankTries
    paces_s: list[float] = field(default_factory=list)

    def forecast(self) -> "list[Cell]":
        """Forecast the designs by the profile and the tries so far."""
        errors = self.tries.errors()
        print(
            f"{self.drive.name}, {self.nprobe} cells: measured over forecast p50 "
            f"{np.round(errors.p50, 2).tolist()}, {errors.drift:.1%} from round to round"
        )
        told = [
            predict_rerank(self.profile, self.drive, share, rerank, depth=DEPTH, errors=errors)
            for share in _SHARES
            for rerank in _RERANKS
        ]
        return [Cell(grid=self, design=design) for design in told]


@dataclass(kw_only=True)
class Cell:
    """A design of a grid, and what was measured.

    Attributes:
        grid: where it belongs.
        design: its forecast.
        p50_s: measured median.
        p95_s: measured 95th percentile.
        slower_s: seconds that a plain search took longer then than amid the tries.
    """

    grid: Grid
    design: RerankDesign
    p50_s: float = 0.0
    p95_s: float = 0.0
    slower_s: float = 0.0

    def measure(
        self, world: TokenWorld, reader: ThrottledReader, asked: Queries, paced: Queries
    ) -> None:
        """Search all queries; the first one warms."""
        reranker = PrefetchedReranker(
            world.index,
            world.store,
            reader=reader,
            prefetch_step=self.design.prefetch_step,
            rerank=self.design.rerank,
            nprobe=self.grid.nprobe,
        )
        took_s = [
            reranker.search(asked.texts[place : place + 1], [tokens], K).trace.total_s
            for place, tokens in enumerate(asked.tokens)
        ]
        self.p50_s, self.p95_s = np.percentile(took_s[1:], [50, 95]).tolist()
        now_s = np.median(pace_s(world, self.grid.nprobe, paced))
        self.slower_s = float(now_s - np.median(self.grid.paces_s))

    def off(self, *, at_equal_speed: bool = False) -> float:
        """Return the relative error of the forecast of the median."""
        came_s = self.p50_s - (self.slower_s if at_equal_speed else 0.0)
        return self.design.p50_s.value / came_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the 80 % interval holds the measured median."""
        return self.design.p50_s.low <= self.p50_s <= self.design.p50_s.high


def pace_s(world: TokenWorld, nprobe: int, queries: Queries) -> list[float]:
    """Search for candidates alone: what that takes says how fast the machine is now."""
    found = []
    for place in range(len(queries.texts)):
        begin_s = time.perf_counter()
        world.index.search(queries.texts[place : place + 1], _RERANKS[-1], nprobe=nprobe)
        found.append(time.perf_counter() - begin_s)
    return found


def planner_checks(world: TokenWorld, quick: bool) -> list[Check]:
    """Forecast grids of designs from one profile each, then measure them with other queries."""
    drives = [PLAYED] if quick else [PLAYED, storage_tier("870-evo"), storage_tier("pm9a3")]
    probes = [world.index.nprobe] if quick else [world.index.nprobe, world.index.nprobe // 2]
    grids = _grids(world, drives, probes, quick)
    paced = world.made.queries(_PACED, seed=18)
    for _ in range(4 if quick else 8):
        for grid in grids:
            grid.tries.round()
            grid.paces_s.extend(pace_s(world, grid.nprobe, paced))
    cells = [cell for grid in grids for cell in grid.forecast()]
    for grid in grids:
        grid.tries.close()
    asked = world.made.queries(20 if quick else 80, seed=_KEPT_ASIDE)
    readers = {drive.name: ThrottledReader(world.store, drive, depth=DEPTH) for drive in drives}
    # Each design has a moment of its own, so that cells of a grid do not share one.
    for place in np.random.default_rng(0).permutation(len(cells)):
        cells[place].measure(world, readers[cells[place].grid.drive.name], asked, paced)
    for reader in readers.values():
        # A map that is still there would keep pages in memory that later checks want cold.
        reader.close()
    return _judged(grids, cells, world.index.nprobe)


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


def _judged(grids: list[Grid], cells: list[Cell], nprobe: int) -> list[Check]:
    """Compare forecasts with what was measured."""
    judged = [cell for cell in cells if cell.grid.drive is PLAYED and cell.grid.nprobe == nprobe]
    for cell in judged:
        design, told = cell.design, cell.design.p50_s
        print(
            f"prefetch after {design.prefetch_step:.0%}, {design.rerank:>3} ranked: p50 "
            f"{told.value * 1e3:.2f} ({told.low * 1e3:.2f} to {told.high * 1e3:.2f}), measured "
            f"{cell.p50_s * 1e3:.2f} ms; p95 {design.p95_s.value * 1e3:.2f}, measured "
            f"{cell.p95_s * 1e3:.2f}; {design.hit_rate:.0%} guessed"
        )
    for grid in grids:
        own = [cell for cell in cells if cell.grid is grid]
        print(
            f"{grid.drive.name}, {grid.nprobe} cells: p50 off by "
            f"{np.median([cell.off() for cell in own]):+.1%} in the middle, "
            f"{_worst(own):.1%} at most, {_worst(own, at_equal_speed=True):.1%} at equal speed: a "
            f"search took {np.median(grid.paces_s) * 1e3:.2f} ms amid the tries, "
            f"{np.median([cell.slower_s for cell in own]) * 1e3:+.2f} then; "
            f"{np.mean([cell.is_inside for cell in own]):.0%} inside"
        )
    error = float(np.median([abs(cell.off()) for cell in cells]))
    inside = float(np.mean([cell.is_inside for cell in cells]))
    tail = np.median([abs(cell.design.p95_s.value / cell.p95_s - 1) for cell in cells])
    print(
        f"{len(cells)} designs: p50 off by {error:.1%} in the middle, p95 by {tail:.1%}; "
        f"{inside:.0%} inside the 80 % interval"
    )
    at_speed = _worst(judged, at_equal_speed=True)
    checks = [
        Check("3 p50 off, worst of 3 x 3", _worst(judged), 0.15, "lower"),
        Check("3 the same at equal speed of the machine", at_speed, 0.15, "lower"),
    ]
    if len(cells) >= 50:
        told = [cell.design.p50_s for cell in cells]
        width = float(np.median([(item.high - item.low) / 2 / item.value for item in told]))
        checks += [
            Check("3 p50 inside the 80 % interval, least", inside, 0.7, "higher"),
            Check("3 p50 inside the 80 % interval, most", inside, 0.9, "lower"),
            Check("3 half-width over the median error", width / error, 2.5, "lower"),
        ]
    return checks


def _worst(cells: list[Cell], *, at_equal_speed: bool = False) -> float:
    """Return the largest error of a forecast of a median."""
    return max(abs(cell.off(at_equal_speed=at_equal_speed)) for cell in cells)
