"""`steelyard retrieve study`: what a store of passages is worth to a reader, at every size."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.places import require_place
from steelyard.errors import DataError, FitError
from steelyard.laws import Fit
from steelyard.laws.pictures.charts import fit_chart
from steelyard.quantity import Check
from steelyard.retrieve.corpus import CorpusIndex
from steelyard.retrieve.corpus.files import SkippedFiles, list_corpus, read_file
from steelyard.retrieve.readers import (
    ReadingStudy,
    cut_windows,
    load_reader,
    study_reading,
    teach_copier,
)
from steelyard.retrieve.readers.study import Reads
from steelyard.runs.report import Cell, Chart, Checks, Column, Facts, Report, Section, Table, Text

__all__ = ["study"]

_TIMES = (3.0, 10.0)
"""Larger stores that the law speaks of, over the whole one."""


def study(
    index: Path,
    *,
    reader: Path,
    heldout: tuple[Path, ...],
    known: int = 64,
    wanted: int = 64,
    windows: int = 400,
    k: int = 3,
    candidates: int = 1000,
    copies: Switch = False,
    report: Path | None = None,
    json: Switch = False,
) -> None:
    """Read held-out text with passages of stores of nine sizes, from one search of the whole one.

    Example: steelyard retrieve study notes-index --reader model --heldout other-notes

    A window of held-out text has a known part, which passages are looked up by, and a wanted part,
    which the reader predicts. Smaller stores are drawn from the answers of the whole one.

    Args:
        index: folder that `steelyard retrieve build` wrote for texts.
        reader: folder of a decoder with tokenizer.json, such as `steelyard train run` leaves.
        heldout: files and folders of text that the reader was not trained on; passages of the same
            file in the index are left out.
        known: tokens of a window that are given.
        wanted: tokens of a window that are predicted.
        windows: windows that are read, drawn from all.
        k: passages that are read, the best ones.
        candidates: passages of each window that all stores choose among.
        copies: let a copier look into passages beside the reader, in place of passages in front of
            the text: for readers too small to look anything up; half of the windows teach it.
        report: HTML file for a page with all that is printed, and the law.
        json: print JSON instead of tables.
    """
    require_range(1, known=known, wanted=wanted, windows=windows, k=k, candidates=candidates)
    if report is not None:
        require_place(report)
    store = CorpusIndex(index).store
    decoder = load_reader(reader)
    cut = cut_windows(
        _documents(heldout),
        decoder.tokenizer,
        known_tokens=known,
        wanted_tokens=wanted,
        most=windows,
    )
    sizes = {"candidates": candidates, "k": k}
    read: Reads = decoder
    if copies:
        read, cut = teach_copier(store, decoder, cut, **sizes)
    found = study_reading(store, read, cut, **sizes)
    laws = _laws(found)
    page = _page(index, found, laws, copies)
    print_report(page, json=json, html=report, values=_values(found, laws))


def _documents(sources: tuple[Path, ...]) -> list[tuple[str, str]]:
    """Return the texts of files, by the names that passages of an index have."""
    skipped = SkippedFiles()
    # Named as the build names them, so that passages of a held-out file are told from others'.
    found = [
        (str(file.path), "\n".join(part.lines))
        for file in list_corpus(sources, skipped)
        for part in read_file(file, skipped)
    ]
    if not found:
        raise DataError(f"no text in --heldout: {skipped.told()}", hint="name files with words")
    return found


def _laws(found: ReadingStudy) -> dict[str, tuple[Fit, Check]]:
    """Fit and check a law for each filter; losses that do not fall with the store allow none."""
    laws = {}
    for name in found.filters:
        # The losses are worth printing without a law: the page says that none fits.
        with contextlib.suppress(FitError):
            laws[name] = found.law(name), found.foreseen(name)
    return laws


def _page(
    index: Path, found: ReadingStudy, laws: Mapping[str, tuple[Fit, Check]], copies: bool
) -> Report:
    """Return what is printed."""
    sizes = found.losses("none")[0]
    best = float(found.losses("none")[1][-1])
    facts = Facts(
        [
            ("perplexity without a store", f"{np.exp(found.alone):.2f}", "measured"),
            (f"with all {sizes[-1]:,.0f} passages", f"{np.exp(best):.2f}", "measured"),
            ("bits per byte", f"{found.alone * found.bits_per_nat:.3f}", "measured"),
            ("with all passages", f"{best * found.bits_per_nat:.3f}", "measured"),
            ("windows", f"{found.windows:,}", ""),
            ("reads", "by a copier" if copies else "passages in front of the text", ""),
        ]
    )
    sections = [Section("Worth of the store", [facts, _table(found)])]
    for name, (law, check) in laws.items():
        blocks: list[Any] = [Checks([check]), _ahead(found, law, name)]
        title = f"Loss over passages, filter {name}"
        blocks.append(Chart(fit_chart(law, title=title, target="nats per token")))
        sections.append(Section(f"Law, filter {name}", blocks))
    if not laws:
        told = "No law of the store's size fits: the losses do not fall with it."
        sections.append(Section("Law", [Text(told)]))
    return Report(f"What {index} is worth to a reader", "", sections)


def _table(found: ReadingStudy) -> Table:
    """Return losses by size and filter."""
    rows: list[list[Cell]] = []
    for name in found.filters:
        for size, loss in zip(*found.losses(name), strict=True):
            short = np.mean(
                [c.short for c in found.cells if (c.filters, c.passages) == (name, size)]
            )
            rows.append(
                [name, f"{size:,.0f}", f"{loss:.4f}", f"{np.exp(loss):.2f}", f"{short:.1%}"]
            )
    heads = ("filter", "passages, expected", "nats per token", "perplexity", "short")
    told = (
        "clean: without copies of the wanted text; short: windows for "
        "which the store may have had more to offer, raise --candidates where many are"
    )
    return Table([Column(name) for name in heads], rows, told)


def _ahead(found: ReadingStudy, law: Fit, name: str) -> Table:
    """Return what a law says of larger stores."""
    largest = float(found.losses(name)[0][-1])
    sizes = [largest * times for times in _TIMES]
    said = law.predict({"store": sizes}, extrapolate=True)
    rows: list[list[Cell]] = [
        [
            f"{size:,.0f}",
            f"{np.exp(said.value[place]):.2f}",
            f"{np.exp(said.low[place]):.2f} to {np.exp(said.high[place]):.2f}",
        ]
        for place, size in enumerate(sizes)
    ]
    heads = ("passages", "perplexity, forecast", "80 % interval")
    return Table([Column(head) for head in heads], rows, "the same kind of text, more of it")


def _values(found: ReadingStudy, laws: Mapping[str, tuple[Fit, Check]]) -> dict[str, Any]:
    """Return what programs read."""
    return {
        "nats_alone": found.alone,
        "bits_per_nat": found.bits_per_nat,
        "windows": found.windows,
        "stores": [asdict(cell) for cell in found.cells],
        "laws": {
            name: {
                "formula": law.law.formula,
                **{part: float(value) for part, value in law.params.items()},
                "largest_forecast": check.forecast.value,
                "largest_measured": check.measurement.value,
            }
            for name, (law, check) in laws.items()
        },
    }
