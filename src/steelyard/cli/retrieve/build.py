"""`steelyard retrieve build`: an index of texts, or of the vectors in a file."""

import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.search_rates import load_search_rates
from steelyard.cli.following import say_next
from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.places import require_place
from steelyard.cli.retrieve.build_texts import TextFlags, build_texts, read_recipe
from steelyard.cli.retrieve.forecasting import check_values, checked, keep_checks, past_checks
from steelyard.errors import ConfigError
from steelyard.quantity import Check
from steelyard.retrieve import IVF, IVFPQ, IVFFastScan, IVFFlat
from steelyard.retrieve.build_picture import probes_around, settings_chart
from steelyard.retrieve.reading import VECTOR_SUFFIXES, bad_rows_told, read_vectors
from steelyard.retrieve.vector_pilot import VectorPilot, measure_vectors, try_settings
from steelyard.retrieve.vector_tables import TABLE_SUFFIXES
from steelyard.runs.progress import progress
from steelyard.runs.report import Chart, Checks, Facts, Report, Section
from steelyard.units import pretty

__all__ = ["build"]

Kind = Literal["auto", "flat", "ivf", "ivfpq", "fastscan", "bm25", "hybrid"]
_Sources = Annotated[
    Path,
    cyclopts.Parameter(
        help="Files and folders of text (Markdown, source code, HTML, JSON lines, Parquet and so "
        "on), or one file of vectors (.npy, .fvecs, .bvecs), whose numbers are their rows."
    ),
]
"""The help of arguments that may be many stands here: it is not read from a docstring."""
_CODE_CENTERS = {"ivfpq": 256, "fastscan": 16}
_BATCH = 50_000
_SAMPLE_PER_CELL = 64


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """What the index is like.

    Args:
        kind: flat compares every vector and is exact; ivf looks into some cells only; ivfpq keeps
            short codes in the cells; fastscan keeps shorter ones and compares the best again; of
            texts also bm25, which scores words, and hybrid, which scores words and vectors; auto
            is hybrid for texts, ivf for vectors.
        cells: number of cells; four times the square root of the vectors when 0.
        code_bytes: bytes of a code of ivfpq; fastscan takes a quarter of the numbers of a vector.
        rotate: rotate vectors first, so that codes lose less.
        rerank: keep whole vectors as well, and compare so many candidates per wanted neighbour
            again; fastscan takes 8 when 0.
        metric: l2 for squared distances, ip for inner products.
        store: what whole vectors are kept as; uint8 for whole numbers from 0 to 255.
    """

    kind: Kind = "auto"
    cells: int = 0
    code_bytes: int = 16
    rotate: Switch = False
    rerank: int = 0
    metric: Literal["l2", "ip"] = "l2"
    store: Literal["float32", "uint8"] = "float32"

    def made(self, dim: int, count: int) -> IVF:
        """Return the index without vectors."""
        if self.kind in ("bm25", "hybrid"):
            raise ConfigError(f"--kind {self.kind} is for texts", hint="vectors have no words")
        if self.kind == "flat":
            return IVFFlat(dim, metric=self.metric, store=self.store)
        self._check(dim, count)
        cells = min(self.cells or round(4 * count**0.5), count)
        nprobe = max(1, cells // 100)
        if self.kind in ("ivf", "auto"):
            return IVFFlat(dim, nlist=cells, nprobe=nprobe, metric=self.metric, store=self.store)
        if self.kind == "fastscan":
            again = self.rerank or 8
            return IVFFastScan(dim, nlist=cells, nprobe=nprobe, metric=self.metric, rerank=again)
        return IVFPQ(
            dim,
            nlist=cells,
            parts=self.code_bytes,
            nprobe=nprobe,
            metric=self.metric,
            rotate=self.rotate,
            rerank=self.rerank,
        )

    def _check(self, dim: int, count: int) -> None:
        """Refuse what these vectors do not allow, as the command line names it."""
        if not 0 <= self.cells <= count:
            raise ConfigError(
                f"--cells is {self.cells:,}, but must be 0 to the {count:,} vectors that there are"
            )
        if self.rerank < 0:
            raise ConfigError(f"--rerank is {self.rerank}, but must be 0 or more")
        fewest = _CODE_CENTERS.get(self.kind, 0)
        if count < fewest:
            raise ConfigError(
                f"--kind {self.kind} learns {fewest} centers of codes, and there are {count:,} "
                "vectors",
                hint="keep so few whole: --kind flat",
            )
        if self.kind == "ivfpq" and (self.code_bytes < 1 or dim % self.code_bytes):
            fit = ", ".join(str(n) for n in range(1, dim + 1) if dim % n == 0)
            raise ConfigError(
                f"--code-bytes is {self.code_bytes}, but must divide the {dim} numbers of a vector",
                hint=f"give one of {fit}",
            )


def build(
    *sources: _Sources,
    out: Path | None = None,
    options: IndexOptions | None = None,
    texts: TextFlags | None = None,
    vector_column: str = "",
    recipe: Path | None = None,
    encoder: Path | None = None,
    plan: str = "",
    seed: int = 0,
    report: Path | None = None,
    json: Switch = False,
) -> None:
    """Build an index of texts, or of the vectors in a file.

    Texts are cut into passages and searched by words and by vectors that need no model. A second
    build of the same sources reads and encodes what has changed.

    Example: steelyard retrieve build ~/notes

    Args:
        *sources: files and folders of text, or one file of vectors: .npy, .fvecs, .bvecs, or a
            table with --vector-column.
        out: folder for an index of texts, one in the user's own folder when not given; file for one
            of vectors.
        options: what the index is like.
        texts: how texts are cut and encoded.
        vector_column: column of a .parquet or .jsonl file that holds vectors; without it such a
            file is one of texts.
        recipe: TOML file with kind, words, dim and text_field, in the place of those options.
        encoder: folder of a tower of documents, such as `steelyard retrieve towers train` leaves,
            in the place of an encoder that is fitted on the texts; the index keeps a copy.
        plan: run of `steelyard plan retriever --keep` in which that tower also asks: searches are
            written beside what was planned.
        seed: seed of samples, first centers and made queries.
        report: HTML file for a page with all that is printed, and a picture of what other settings
            find and take, as forecast and as measured.
        json: print JSON instead of a table.
    """
    given = options or IndexOptions()
    if not sources:
        raise ConfigError("nothing is named", hint="steelyard retrieve build FOLDER")
    require_range(0, seed=seed)
    if report is not None:
        require_place(report)
    of_vectors = VECTOR_SUFFIXES | TABLE_SUFFIXES if vector_column else VECTOR_SUFFIXES
    if not any(source.suffix in of_vectors and not source.is_dir() for source in sources):
        _check_texts(given, texts, vector_column, recipe)
        wanted = read_recipe(recipe, given.kind, texts or TextFlags())
        build_texts(
            sources, out, wanted, encoder=encoder, plan=plan, seed=seed, report=report, json=json
        )
        return
    if recipe is not None or encoder is not None or plan:
        name = "--recipe" if recipe is not None else "--encoder" if encoder else "--plan"
        raise ConfigError(f"{name} is for texts", hint="a file of vectors is encoded already")
    _refuse_given(texts or TextFlags(), "texts")
    first, *others = sources
    if others:
        raise ConfigError(
            f"{len(sources)} sources, one of them with vectors", hint="give one file of vectors"
        )
    if out is None:
        raise ConfigError("--out is missing", hint="name the file of the index: --out my.index")
    require_place(out)
    rows = read_vectors(first, vector_column)
    with bad_rows_told(first, rows):
        _build_vectors(rows, out, given, seed=seed, report=report, json=json)


def _check_texts(
    given: IndexOptions, texts: TextFlags | None, vector_column: str, recipe: Path | None
) -> None:
    """Refuse options that a build of texts would pass over."""
    if vector_column:
        raise ConfigError(
            f"--vector-column {vector_column} is for one table",
            hint=f"name a file that ends in {', '.join(sorted(TABLE_SUFFIXES))}",
        )
    if given.kind == "fastscan":
        raise ConfigError("--kind fastscan is for vectors", hint="texts: flat, ivf or ivfpq")
    _refuse_given(given, "vectors", but="kind")
    if recipe is not None:
        _refuse_given(given, "builds without --recipe")
        _refuse_given(texts or TextFlags(), "builds without --recipe")


def _refuse_given(options: IndexOptions | TextFlags, what: str, *, but: str = "") -> None:
    """Refuse options that would be passed over."""
    for item in fields(options):
        if item.name != but and getattr(options, item.name) != item.default:
            flag = item.name.replace("_", "-")
            raise ConfigError(f"--{flag} is for {what}", hint="leave it out")


def _build_vectors(
    rows: NDArray[np.generic],
    out: Path,
    options: IndexOptions,
    *,
    seed: int,
    report: Path | None,
    json: bool,
) -> None:
    """Build an index of vectors."""
    index = options.made(rows.shape[1], len(rows))
    # The pilot also compiles and loads what a build needs, so that its time is the work's alone.
    pilot = VectorPilot(index, rows, rates=load_search_rates(), seed=seed)
    said = pilot.figures.forecasts(past_checks(pilot.figures.forecaster))
    build_s = 0.0
    began_s = time.perf_counter()
    with progress("build", total=float(len(rows)), quiet=json) as advance:
        sample = _sample(rows, index.nlist, seed)
        index.train(sample, seed=seed)
        for first in range(0, len(rows), _BATCH):
            part = rows[first : first + _BATCH]
            index.add(part)
            advance(float(first + len(part)), f"{first + len(part):,} vectors")
        index.memory_bytes()  # what waits to be sorted into cells is
        build_s = time.perf_counter() - began_s
        index.save(out)
    took_s = time.perf_counter() - began_s
    checks = checked(said, measure_vectors(index, rows, build_s, seed=seed))
    keep_checks(checks, pilot.figures.forecaster)
    picture = _picture(pilot, index, rows, seed) if report else None
    _show(index, out, took_s, checks, report, picture, json)
    if not json:
        say_next("retrieve", "search", out, "queries.npy")


def _picture(pilot: VectorPilot, index: IVF, rows: NDArray[np.generic], seed: int) -> Chart:
    """Draw what more or fewer cells find and take."""
    probes = probes_around(index.nprobe, index.nlist)
    came = try_settings(index, rows, probes, seed=seed)
    return Chart(settings_chart(index.kind, pilot.settings(probes), came, index.nprobe))


def _sample(rows: NDArray[np.generic], cells: int, seed: int) -> NDArray[np.generic]:
    """Return the vectors that cells are learned from, in the order of the file."""
    most = max(_SAMPLE_PER_CELL * cells, 65_536)
    if len(rows) <= most:
        return rows
    places = np.random.default_rng(seed).choice(len(rows), most, replace=False)
    return rows[np.sort(places)]


def _show(
    index: IVF,
    out: Path,
    took_s: float,
    checks: list[Check],
    report: Path | None,
    picture: Chart | None,
    json: bool,
) -> None:
    """Print what was built."""
    memory = index.memory_bytes()
    total = sum(memory.values())
    facts = [
        ("vectors", f"{len(index):,} of {index.dim} numbers", ""),
        ("cells", f"{index.nlist:,}, {index.nprobe} searched unless asked otherwise", ""),
        ("memory", pretty(total, "byte"), "measured"),
        ("bytes per vector", f"{total / len(index):.1f}", "measured"),
        ("time", pretty(took_s, "s"), "measured"),
    ]
    facts += [(f"memory, {name}", pretty(size, "byte"), "") for name, size in memory.items()]
    sections = [Section("Index", [Facts(facts)]), Section("Forecasts", [Checks(checks)])]
    if picture is not None:
        sections.append(Section("Cells", [picture]))
    page = Report("Index of vectors", f"{index.kind} in {out}", sections)
    values = {
        "settings": index.settings(),
        "vectors": len(index),
        "memory_bytes": memory,
        "seconds": took_s,
        "checks": check_values(checks),
    }
    print_report(page, json=json, html=report, values=values)
