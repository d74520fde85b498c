"""Forecasts of builds against builds: of vectors of four kinds of index, and of folders of text.

Builds of drawn sizes, widths and kinds come one after the other, as a user makes them: each is
forecast by a pilot, its intervals follow from the checks before it. 1 is how many measured values
lie inside their 80 % intervals, 2 how wide these are beside the errors, 3 how far memory is off.
Draws of the seeds that are reported were used for nothing else.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._machine_text import Documents, machine_text
from benchmarks.retrieve._sift_like import sift_like
from numpy.typing import NDArray

from steelyard.parallel import torch_threads
from steelyard.quantity import Check as Checked
from steelyard.quantity import check
from steelyard.retrieve import IVF, IVFPQ, IVFFastScan, IVFFlat
from steelyard.retrieve.corpus import CorpusOptions, build_corpus
from steelyard.retrieve.vector_pilot import forecast_vectors, measure_vectors

PAPER: list[str] = ["39-fanns", "06-massiveds"]

_SEED = 1000
_FIRST = 4
"""Builds of each forecaster that are not counted: their intervals are assumed."""
_EXACT = "retrieve.memory"


def run(quick: bool) -> list[Check]:
    """Forecast, build, compare."""
    vectors, texts = (5, 3) if quick else (60, 52)
    with torch_threads(2), tempfile.TemporaryDirectory() as name:
        found = [*_vector_builds(vectors), *_text_builds(texts, Path(name))]
    groups: dict[str, list[Checked]] = defaultdict(list)
    for forecaster, item in found:
        groups[f"{item.forecast.quantity} of {forecaster}"].append(item)
    checks: list[Check] = []
    for name, items in groups.items():
        checks += _group_checks(name, items)
    timed = [item for _, item in found if item.forecast.quantity != _EXACT]
    covered = float(np.mean([item.covered for item in timed]))
    print(f"all but memory: {covered:.3f} of {len(timed)} inside")
    return [
        Check("1 all but memory: share inside its intervals", covered, 0.7, "higher"),
        Check("1 all but memory: share inside its intervals, most", covered, 0.9, "lower"),
        *checks,
    ]


def _group_checks(name: str, items: list[Checked]) -> list[Check]:
    """Compare one quantity."""
    errors, halves = zip(*(_error_and_half(item) for item in items), strict=True)
    covered = float(np.mean([item.covered for item in items]))
    error, half = float(np.median(errors)), float(np.median(halves))
    print(
        f"{name}: {covered:.3f} of {len(items)} inside, median error {error:.1%}, "
        f"half-width {half:.1%}"
    )
    if name.startswith(_EXACT):
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


def _vector_builds(count: int) -> Iterator[tuple[str, Checked]]:
    """Forecast and build indexes of vectors."""
    past: list[Checked] = []
    for place in range(count + _FIRST):
        rng = np.random.default_rng(_SEED + place)
        rows = _drawn(rng)
        index = _made(rng, *rows.shape)
        said = forecast_vectors(index, rows, seed=place).forecasts(past)
        began_s = time.perf_counter()
        index.train(rows[: 64 * max(index.nlist, 1024)], seed=place)
        index.add(rows)
        index.memory_bytes()
        took_s = time.perf_counter() - began_s
        checks = check(said, measure_vectors(index, rows, took_s, seed=place).measurements())
        past += checks
        if place >= _FIRST:
            yield from (("vectors", item) for item in checks)


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


def _text_builds(count: int, folder: Path) -> Iterator[tuple[str, Checked]]:
    """Forecast and build indexes of folders of text."""
    documents, _ = machine_text(8_000_000)
    past: list[Checked] = []
    for place in range(count + _FIRST):
        rng = np.random.default_rng(_SEED + place)
        source = _written(rng, documents, folder / f"texts{place}")
        options = CorpusOptions(
            kind=str(rng.choice(["hybrid", "hybrid", "bm25", "flat"])),
            words=int(rng.choice([64, 128, 256])),
            dim=int(rng.choice([64, 128])),
            seed=place,
        )
        built = build_corpus(folder / f"index{place}", [source], options)
        if built.forecast is None or built.measured is None:
            continue
        checks = check(built.forecast.forecasts(past), built.measured.measurements())
        past += checks
        if place >= _FIRST:
            yield from (("texts", item) for item in checks)


def _written(rng: np.random.Generator, documents: Documents, folder: Path) -> Path:
    """Write some documents into a folder."""
    folder.mkdir()
    most = float(np.exp(rng.uniform(np.log(2e5), np.log(1.5e6))))
    size = 0
    for number in rng.permutation(len(documents)).tolist():
        text = documents[number][1][:200_000]
        (folder / f"{number}.txt").write_text(text)
        size += len(text)
        if size >= most:
            break
    return folder
