"""Forecasts of builds against builds: of vectors of four kinds of index, and of folders of text.

Builds of drawn sizes, widths and kinds come one after the other, as a user makes them: each is
forecast by a pilot, its intervals follow from the checks before it. 1 is how many measured values
lie inside their 80 % intervals, 2 how wide these are beside the errors, 3 how far memory of vectors
is off, 4 how far a forecast moves when two other programs want
the processors. Constants were fitted on other seeds, and those of texts on other texts: the source
files of Python. Draws that are reported were used for nothing else.
"""

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._sift_like import sift_like
from benchmarks.retrieve._text_collections import read_abstracts, write_collection
from numpy.typing import NDArray

from steelyard.catalog.calibrate import default_threads
from steelyard.parallel import torch_threads
from steelyard.quantity import Check as Checked
from steelyard.quantity import check
from steelyard.retrieve import IVF, IVFPQ, IVFFastScan, IVFFlat
from steelyard.retrieve.corpus import CorpusOptions, build_corpus
from steelyard.retrieve.forecasts import TEXT_FORECASTER
from steelyard.retrieve.vector_pilot import forecast_vectors, measure_vectors

PAPER: list[str] = ["39-fanns", "06-massiveds"]

_SEED, _QUICK_SEED = 11_000, 8000
_FIRST = 4
"""Builds of each forecaster that are not counted: their intervals are assumed."""
_EXACT = "retrieve.memory of vectors"
_LOADED = 5
"""Collections whose build is forecast with and without other work."""
_SPINNING = "while True: sum(range(10000))"


def run(quick: bool) -> list[Check]:
    """Forecast, build, compare."""
    vectors, texts = (6, 4) if quick else (74, 56)
    with torch_threads(default_threads()), tempfile.TemporaryDirectory() as name:
        builds = _Builds(_QUICK_SEED if quick else _SEED)
        builds.of_vectors(vectors)
        builds.of_texts(texts, Path(name))
        loaded = _loaded(2 if quick else _LOADED, Path(name))
    groups: dict[str, list[Checked]] = defaultdict(list)
    for kind, item in builds.found:
        groups[f"{item.forecast.quantity} of {kind}"].append(item)
    checks: list[Check] = []
    for label, items in groups.items():
        checks += _group_checks(label, items)
    timed = [item for label, items in groups.items() for item in items if label != _EXACT]
    covered = float(np.mean([item.covered for item in timed]))
    print(f"all but memory of vectors: {covered:.3f} of {len(timed)} inside")
    for kind, shares in builds.pilots.items():
        share = float(np.median(shares))
        print(f"pilot of {kind}: {share:.0%} of the build's time (median)")
    print(f"forecasts with other work beside, over those without: {np.round(loaded, 2).tolist()}")
    worst = float(np.exp(np.abs(np.log(loaded)).max()))
    return [
        Check("1 all but memory of vectors: share inside", covered, 0.7, "higher"),
        Check("1 all but memory of vectors: share inside, most", covered, 0.9, "lower"),
        *checks,
        Check("4 forecast beside other work, off by the factor, worst", worst, 2.0, "lower"),
    ]


def _group_checks(name: str, items: list[Checked]) -> list[Check]:
    """Compare one quantity."""
    errors, halves = zip(*(_error_and_half(item) for item in items), strict=True)
    covered = float(np.mean([item.covered for item in items]))
    error, half = float(np.median(errors)), float(np.median(halves))
    lean = float(np.median([item.measurement.value / item.forecast.value for item in items]))
    print(
        f"{name}: {covered:.3f} of {len(items)} inside, median error {error:.1%}, "
        f"half-width {half:.1%}, measured over forecast {lean:.2f}"
    )
    if name == _EXACT:
        return [Check(f"3 {name}: median error", error, 0.05, "lower")]
    return [
        Check(f"1 {name}: share inside", covered, 0.7, "higher"),
        Check(f"1 {name}: share inside, most", covered, 0.9, "lower"),
        Check(f"2 {name}: half-width over median error", half / max(error, 1e-9), 2.5, "lower"),
    ]


def _error_and_half(item: Checked) -> tuple[float, float]:
    """Return error and half-width, of the logarithm; of a recall, of itself."""
    said, came = item.forecast, item.measurement.value
    if said.quantity == "retrieve.recall":
        return abs(came - said.value), (said.high - said.low) / 2
    return abs(float(np.log(came / said.value))), 0.5 * float(np.log(said.high / said.low))


class _Builds:
    """Builds that were forecast, and what came."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.found: list[tuple[str, Checked]] = []
        self.pilots: dict[str, list[float]] = defaultdict(list)
        self._past: dict[str, list[Checked]] = defaultdict(list)
        self._done: dict[str, int] = defaultdict(int)

    def _note(self, kind: str, forecaster: str, checks: list[Checked], share: float) -> None:
        """Keep a build; the first few of a forecaster only teach it."""
        self._past[forecaster] += checks
        self._done[forecaster] += 1
        if self._done[forecaster] > _FIRST:
            self.found += [(kind, item) for item in checks]
            self.pilots[kind].append(share)

    def of_vectors(self, count: int) -> None:
        """Forecast and build indexes of vectors."""
        for place in range(count + _FIRST):
            rng = np.random.default_rng(self._seed + place)
            rows = _drawn(rng)
            index = _made(rng, *rows.shape)
            began_s = time.perf_counter()
            told = forecast_vectors(index, rows, seed=place)
            pilot_s = time.perf_counter() - began_s
            said = told.forecasts(self._past[told.forecaster])
            began_s = time.perf_counter()
            index.train(rows[: 64 * max(index.nlist, 1024)], seed=place)
            index.add(rows)
            index.memory_bytes()
            took_s = time.perf_counter() - began_s
            came = measure_vectors(index, rows, took_s, seed=place).measurements()
            self._note("vectors", told.forecaster, check(said, came), pilot_s / took_s)

    def of_texts(self, count: int, folder: Path) -> None:
        """Forecast and build indexes of folders of text."""
        written = read_abstracts()
        for place in range(count + _FIRST):
            rng = np.random.default_rng(self._seed + place)
            _, source = write_collection(rng, written, folder / f"texts{place}")
            built = build_corpus(folder / f"index{place}", [source], _options(rng, place))
            if built.forecast is None or built.measured is None:
                continue
            said = built.forecast.forecasts(self._past[TEXT_FORECASTER])
            share = built.stage_s["forecast"] / built.measured.build_s
            checks = check(said, built.measured.measurements())
            self._note("texts", TEXT_FORECASTER, checks, share)


def _options(rng: np.random.Generator, seed: int) -> CorpusOptions:
    """Draw how texts are cut and indexed."""
    return CorpusOptions(
        kind=str(rng.choice(["hybrid", "hybrid", "bm25", "flat"])),
        words=int(rng.choice([64, 128, 256])),
        dim=int(rng.choice([64, 128])),
        seed=seed,
    )


def _loaded(count: int, folder: Path) -> list[float]:
    """Return forecasts of builds while other programs run, over those of a calm machine."""
    written, found = read_abstracts(), []
    for place in range(count):
        rng = np.random.default_rng(_SEED + 500 + place)
        _, source = write_collection(rng, written, folder / f"loaded{place}")
        options = _options(rng, place)
        calm, busy = folder / f"calm{place}", folder / f"busy{place}"
        first = build_corpus(calm, [source], options).forecast
        with _other_work():
            second = build_corpus(busy, [source], options).forecast
        if first and second:
            found.append(second.build_s / first.build_s)
    return found


@contextmanager
def _other_work() -> Iterator[None]:
    """Keep as many programs busy as two processors run."""
    running = [subprocess.Popen([sys.executable, "-c", _SPINNING]) for _ in range(2)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _drawn(rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw vectors of some kind, size and width."""
    count = int(np.exp(rng.uniform(np.log(3_000), np.log(30_000))))
    kind = int(rng.integers(3))
    if kind == 0:
        return sift_like(count, int(rng.integers(1 << 30))).astype(np.float32)
    dim = int(rng.choice([16, 32, 64, 96, 128, 256]))
    if kind == 1:
        middles = rng.normal(size=(int(rng.integers(20, 400)), dim)) * 1.5
        drawn = middles[rng.integers(0, len(middles), count)] + rng.normal(size=(count, dim))
    else:
        inner = rng.normal(size=(count, max(4, dim // 6)))
        drawn = np.tanh(inner @ rng.normal(size=(inner.shape[1], dim)) / 2)
        drawn += 0.1 * rng.normal(size=drawn.shape)
    return drawn.astype(np.float32)


def _made(rng: np.random.Generator, count: int, dim: int) -> IVF:
    """Draw an index for some vectors."""
    cells = min(round(float(rng.choice([1, 2, 4])) * count**0.5), count // 8)
    nprobe = max(1, round(cells * float(rng.choice([0.01, 0.03, 0.1]))))
    kind = int(rng.integers(4))
    if kind == 0:
        return IVFFlat(dim)
    if kind == 1:
        return IVFFlat(dim, nlist=cells, nprobe=nprobe)
    again = int(rng.choice([4, 8]))
    if kind == 2:
        parts = dim // int(rng.choice([4, 8]))
        return IVFPQ(dim, nlist=cells, nprobe=nprobe, parts=parts, rerank=again)
    return IVFFastScan(dim, nlist=cells, nprobe=nprobe, rerank=again)
