"""Train ladders as a quickstart does, over seeds and several kinds of text, and store their points.

`python -m benchmarks.weigh._ladders --out FOLDER` trains what `ladder_points.csv` lacks;
`fresh_points.csv` holds ladders of texts and seeds that nothing was chosen on, `short_points.csv`
such ladders of runs 2.5 times shorter. It may be killed at any time: the next call goes on at the
last checkpoint. A ladder's rows are written together, when its last run is done, so that the table
never holds half a ladder.
"""

import csv
import gzip
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cyclopts
import msgspec
from benchmarks.laws._shared import shared

from steelyard.config import convert
from steelyard.data.shards import TokenShards
from steelyard.data.text import default_sources, prepare
from steelyard.files import atomic_path, read_json, write_bytes, write_json
from steelyard.weigh.forecast import RungPoint
from steelyard.weigh.ladder import VOCAB_SIZE, Ladder, design, probe_shapes
from steelyard.weigh.settings import QuickstartConfig
from steelyard.weigh.training import climb, probe_step_times, train_target

__all__ = ["FRESH", "POINTS", "SHORT", "TEXTS", "LadderRun", "read_ladders"]

POINTS = Path(__file__).with_name("ladder_points.csv")
FRESH = Path(__file__).with_name("fresh_points.csv")
SHORT = Path(__file__).with_name("short_points.csv")
_TEXT_BYTES = 15_000_000
_HELDOUT_FRACTION = 0.05
_COLUMNS = ("hidden_size", "num_layers", "parameters", "steps", "tokens", "loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderRun:
    """One ladder and the larger run it is to forecast.

    Attributes:
        text: kind of text, a key of `TEXTS`.
        seed: seed of the held-out documents, data order and weights.
        points: cooled-down runs of the rungs.
        target: the larger run.
    """

    text: str
    seed: int
    points: list[RungPoint]
    target: RungPoint


def _library(folder: Path) -> list[Path]:
    """Return what a quickstart reads by default: Python's library and the system's documents."""
    return default_sources()


def _abstracts(folder: Path) -> list[Path]:
    """Unpack scientific abstracts, one file each, and return their folder."""
    place = folder / "abstracts"
    for name, field in (("arxiv-abstracts/papers", "abstract"), ("cranfield/docs", "text")):
        source = shared(name.partition("/")[0]) / f"{name.partition('/')[2]}.jsonl.gz"
        with gzip.open(source, "rt", encoding="utf-8") as lines:
            for row, line in enumerate(lines):
                text = msgspec.json.decode(line)[field]
                write_bytes(place / f"{source.parent.name}-{row:06d}.txt", text.encode())
    return [place]


def _headers(folder: Path) -> list[Path]:
    """Return the C++ headers that come with PyTorch."""
    import torch

    return [Path(torch.__file__).parent / "include"]


def _packages(folder: Path) -> list[Path]:
    """Return the Python packages beside PyTorch: code of many hands."""
    import torch

    return [Path(torch.__file__).parents[1]]


def _c_headers(folder: Path) -> list[Path]:
    """Return the system's C headers."""
    return [Path("/usr/include")]


TEXTS: dict[str, Callable[[Path], list[Path]]] = {
    "library": _library,
    "abstracts": _abstracts,
    "headers": _headers,
    "packages": _packages,
    "c": _c_headers,
}
"""Python and documents, English prose, C++, many hands' Python, C: what they differ in is what a
law must stand."""


def read_ladders(path: Path = POINTS) -> list[LadderRun]:
    """Read the stored ladders, by seed and text.

    Args:
        path: the table; a missing one holds no ladder.

    Returns:
        Ladders in the order in which they were stored.
    """
    if not path.exists():
        return []
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    found: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault((row["text"], int(row["seed"])), []).append(row)
    return [
        LadderRun(
            text=text,
            seed=seed,
            points=[_point(row) for row in group if row["role"] == "rung"],
            target=next(_point(row) for row in group if row["role"] == "target"),
        )
        for (text, seed), group in found.items()
    ]


def _point(row: dict[str, str]) -> RungPoint:
    """Read one run; times and memory are not kept, since they say nothing about the law."""
    counts: dict[str, Any] = {name: int(row[name]) for name in _COLUMNS[:-1]}
    return RungPoint(
        **counts,
        loss=float(row["loss"]),
        step_time_s=0.0,
        step_time_spread_s=0.0,
        peak_memory_bytes=0.0,
    )


def _write_ladders(ladders: list[LadderRun], points: Path) -> None:
    """Replace the table."""
    with atomic_path(points) as path, path.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("text", "seed", "role", *_COLUMNS))
        for item in ladders:
            runs = [*((point, "rung") for point in item.points), (item.target, "target")]
            for point, role in runs:
                values = [getattr(point, name) for name in _COLUMNS]
                writer.writerow((item.text, item.seed, role, *values))


def _shards(folder: Path, text: str, seed: int) -> TokenShards:
    """Prepare one text as the quickstart does; a finished folder is taken as it is."""
    prepare(
        TEXTS[text](folder),
        folder / "data",
        vocab_size=VOCAB_SIZE,
        heldout_fraction=_HELDOUT_FRACTION,
        seed=seed,
        max_bytes=_TEXT_BYTES,
    )
    return TokenShards(folder / "data")


def _design(out: Path, shards: TokenShards, config: QuickstartConfig) -> Ladder:
    """Return the ladder of a quickstart of so many minutes on this machine.

    The probe is made once: ladders that differ in their lengths could not be scored together.
    """
    path = out / "ladder.json"
    if not path.exists():
        seconds = probe_step_times(probe_shapes(config.minutes), shards, config, lambda *_: None)
        write_json(
            path, design(seconds, budget_s=60 * config.minutes, max_tokens=shards.num_tokens)
        )
    return convert(read_json(path), Ladder)


def _train(out: Path, text: str, seed: int, minutes: float, threads: int) -> LadderRun:
    """Train one ladder and its larger run, or go on with them."""
    folder = out / f"{text}-{seed}"
    config = QuickstartConfig(out=folder, minutes=minutes, seed=seed, threads=threads)
    shards = _shards(folder, text, seed)
    ladder = _design(out, shards, config)
    points = climb(ladder, shards, config, lambda *_: None)
    result, _ = train_target(ladder, shards, config, lambda *_: None)
    target = RungPoint(
        hidden_size=ladder.target[0],
        num_layers=ladder.target[1],
        parameters=result.parameters,
        steps=result.steps,
        tokens=result.tokens,
        loss=result.eval_loss,
        step_time_s=0.0,
        step_time_spread_s=0.0,
        peak_memory_bytes=0.0,
    )
    shutil.rmtree(folder)
    return LadderRun(text=text, seed=seed, points=points, target=target)


def train_ladders(
    *,
    out: Path,
    points: Path = POINTS,
    texts: tuple[str, ...] = ("library", "abstracts", "headers"),
    first_seed: int = 0,
    seeds: int = 7,
    minutes: float = 5.0,
    threads: int = 0,
) -> None:
    """Train every ladder that the table lacks.

    Args:
        out: Folder for text and checkpoints; a ladder's part is removed when it is stored.
        points: Table of the ladders.
        texts: Kinds of text.
        first_seed: Seed of the first ladder of each kind.
        seeds: Ladders per kind of text.
        minutes: Length of the quickstart that is designed.
        threads: Threads of every kernel, 0 for all cores.
    """
    ladders = read_ladders(points)
    stored = {(item.text, item.seed) for item in ladders}
    for seed in range(first_seed, first_seed + seeds):
        for text in texts:
            if (text, seed) in stored:
                continue
            ladders.append(_train(out, text, seed, minutes, threads))
            _write_ladders(ladders, points)
            done = ladders[-1].target
            print(f"{len(ladders)} ladders: {text} {seed}, {done.loss:.4f}", flush=True)


if __name__ == "__main__":
    cyclopts.run(train_ladders)
