"""Forecasts of re-ranking beside measurements: grids of designs on played drives.

What forecasts are off by is found on designs of other shares and other numbers of documents than
those that are judged, with other queries, and before: tries go round by round through all drives,
so that each sees some minutes of the machine. What is judged is measured in rounds too, each in an
order of its own: 80 searches take a third of a second, in which the machine may be a fifth slower
than in the next. Medians are those of all rounds; intervals are of one, as a user sees one.

The other designs are tried again between those rounds: how far forecasts by these tries are off is
what the model is wrong by, and what the first ones are off by beyond that is the machine's drift.
"""

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
_OF_A_GRID = len(_SHARES) * len(_RERANKS)
_KEPT_ASIDE = 2108
"""Seed of the queries that forecasts are judged by."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Designs on one drive with one width of the search.

    Attributes:
        drive: what is played.
        nprobe: cells that a query looks into.
        profile: of that width.
        tries: of other designs, before what is judged.
        meanwhile: the same, between the rounds of what is judged.
    """

    drive: StorageTier
    nprobe: int
    profile: RerankProfile
    tries: RerankTries
    meanwhile: RerankTries

    def forecast(self, tries: RerankTries) -> list[RerankDesign]:
        """Forecast the designs by the profile and some tries."""
        errors = tries.errors()
        print(
            f"{self.drive.name}, {self.nprobe} cells: measured over forecast p50 "
            f"{np.round(errors.p50, 2).tolist()}, {errors.drift:.1%} from round to round"
        )
        return [
            predict_rerank(self.profile, self.drive, share, rerank, depth=DEPTH, errors=errors)
            for share in _SHARES
            for rerank in _RERANKS
        ]


@dataclass(kw_only=True)
class Cell:
    """A design of a grid, and what was measured.

    Attributes:
        grid: where it belongs.
        design: its forecast.
        meanwhile: its forecast by tries between the rounds.
        rounds_s: seconds of the searches of each round.
    """

    grid: Grid
    design: RerankDesign
    meanwhile: RerankDesign | None = None
    rounds_s: list[NDArray[np.float64]] = field(default_factory=list)

    def measure(self, world: TokenWorld, reader: ThrottledReader, asked: Queries) -> None:
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
        self.rounds_s.append(np.array(took_s[1:]))

    def measured_s(self, percentile: int) -> float:
        """Return a percentile of the searches of all rounds."""
        return float(np.percentile(np.concatenate(self.rounds_s), percentile))

    @property
    def moments_s(self) -> NDArray[np.float64]:
        """Median of each round."""
        return np.array([np.median(took_s) for took_s in self.rounds_s])

    @property
    def off(self) -> float:
        """Relative error of the forecast of the median over all rounds."""
        return self.design.p50_s.value / self.measured_s(50) - 1

    @property
    def meanwhile_off(self) -> float:
        """The same, of the forecast by tries between the rounds."""
        assert self.meanwhile is not None
        return self.meanwhile.p50_s.value / self.measured_s(50) - 1

    @property
    def moments_off(self) -> NDArray[np.float64]:
        """Relative errors, without their signs, of the forecast of each round's median."""
        return np.abs(self.design.p50_s.value / self.moments_s - 1)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether the 80 % interval holds the median of each round."""
        told = self.design.p50_s
        return (told.low <= self.moments_s) & (self.moments_s <= told.high)


def planner_checks(world: TokenWorld, quick: bool) -> list[Check]:
    """Forecast grids of designs from one profile each, then measure them with other queries."""
    drives = [PLAYED] if quick else [PLAYED, storage_tier("870-evo"), storage_tier("pm9a3")]
    probes = [world.index.nprobe] if quick else [world.index.nprobe, world.index.nprobe // 2]
    grids = _grids(world, drives, probes, quick)
    rounds = 4 if quick else 8
    for _ in range(rounds):
        for grid in grids:
            grid.tries.round()
    cells = [
        Cell(grid=grid, design=design) for grid in grids for design in grid.forecast(grid.tries)
    ]
    readers = {drive.name: ThrottledReader(world.store, drive, depth=DEPTH) for drive in drives}
    asked, rng = world.made.queries(20 if quick else 80, seed=_KEPT_ASIDE), np.random.default_rng(0)
    for _ in range(rounds):
        # Each design has moments of its own, so that cells of a grid do not share them.
        for turn, place in enumerate(rng.permutation(len(cells)), start=1):
            cells[place].measure(world, readers[cells[place].grid.drive.name], asked)
            if turn % _OF_A_GRID == 0:
                grids[turn // _OF_A_GRID - 1].meanwhile.round()
    again = [design for grid in grids for design in grid.forecast(grid.meanwhile)]
    for cell, design in zip(cells, again, strict=True):
        cell.meanwhile = design
    for tries in (one for grid in grids for one in (grid.tries, grid.meanwhile)):
        tries.close()
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
            tries, meanwhile = (
                RerankTries(
                    *(profile, world.index, world.store, tried.texts, tried.tokens, drive),
                    designs=designs,
                    depth=DEPTH,
                )
                for _ in range(2)
            )
            found.append(
                Grid(drive=drive, nprobe=nprobe, profile=profile, tries=tries, meanwhile=meanwhile)
            )
    return found


def _judged(grids: list[Grid], cells: list[Cell], nprobe: int) -> list[Check]:
    """Compare forecasts with what was measured."""
    judged = [cell for cell in cells if cell.grid.drive is PLAYED and cell.grid.nprobe == nprobe]
    for cell in judged:
        design, told = cell.design, cell.design.p50_s
        moments_ms = cell.moments_s * 1e3
        print(
            f"prefetch after {design.prefetch_step:.0%}, {design.rerank:>3} ranked: p50 "
            f"{told.value * 1e3:.2f} ({told.low * 1e3:.2f} to {told.high * 1e3:.2f}), measured "
            f"{cell.measured_s(50) * 1e3:.2f} ({moments_ms.min():.2f} to {moments_ms.max():.2f} "
            f"by round) ms; p95 {design.p95_s.value * 1e3:.2f}, measured "
            f"{cell.measured_s(95) * 1e3:.2f}; {design.hit_rate:.0%} guessed"
        )
    for grid in grids:
        own = [cell for cell in cells if cell.grid is grid]
        print(
            f"{grid.drive.name}, {grid.nprobe} cells: p50 off by "
            f"{np.median([cell.off for cell in own]):+.1%} in the middle, "
            f"{max(abs(cell.off) for cell in own):.1%} at most; by tries in the same minutes "
            f"{np.median([cell.meanwhile_off for cell in own]):+.1%}, "
            f"{max(abs(cell.meanwhile_off) for cell in own):.1%}; "
            f"{np.mean([cell.inside for cell in own]):.0%} of rounds inside"
        )
    error = float(np.median([cell.moments_off for cell in cells]))
    inside = float(np.mean([cell.inside for cell in cells]))
    tail = np.median([abs(cell.design.p95_s.value / cell.measured_s(95) - 1) for cell in cells])
    first = max(float(cell.moments_off[0]) for cell in judged)
    print(
        f"{len(cells)} designs: p50 of a round off by {error:.1%} in the middle, p95 by "
        f"{tail:.1%}; {inside:.0%} inside the 80 % interval; worst of 3 x 3 in the first round "
        f"alone {first:.1%}"
    )
    before = max(abs(cell.off) for cell in judged)
    meanwhile = max(abs(cell.meanwhile_off) for cell in judged)
    checks = [
        Check("3 p50 off, worst of 3 x 3, forecast before", before, 0.15, "lower"),
        Check("3 p50 off, worst of 3 x 3, tried in the same minutes", meanwhile, 0.15, "lower"),
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
