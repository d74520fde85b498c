"""`steelyard retrieve tune`: the fewest cells for a recall, or the fastest of several indexes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.search_rates import load_search_rates
from steelyard.cli.output import Switch, print_report
from steelyard.errors import CapacityError, ConfigError
from steelyard.retrieve import IVF, IVFPQ, IVFFastScan, IVFFlat, open_index
from steelyard.retrieve.choosing import Chosen, choose_index
from steelyard.retrieve.choosing_picture import choice_chart
from steelyard.retrieve.code_sizes import smallest_code
from steelyard.retrieve.index import checked_recall
from steelyard.retrieve.reading import read_vectors
from steelyard.retrieve.tuning import Tuned, require_queries
from steelyard.retrieve.tuning import tune as find_probes
from steelyard.runs.report import Cell, Chart, Column, Facts, Report, Section, Table
from steelyard.units import pretty

__all__ = ["tune"]

_BATCH = 100_000


def tune(
    index: Path,
    queries: Path,
    *,
    vectors: Path,
    recall: float = 0.95,
    k: int = 10,
    beside: tuple[Path, ...] = (),
    write: Switch = False,
    report: Path | None = None,
    json: Switch = False,
) -> None:
    """Find the fewest cells to look into for a recall, and check them on other queries.

    Example: steelyard retrieve tune my.index queries.npy --vectors vectors.npy --recall 0.95

    After `steelyard retrieve calibrate`, candidates that are compared again are chosen as well, and
    the fastest of several indexes of the same vectors: few settings are measured, as forecasts tell
    which can be the fastest.

    Args:
        index: file that `steelyard retrieve build` wrote.
        queries: .npy, .fvecs or .bvecs file with 20 queries or more; half of them choose, the
            others check.
        vectors: file that the index was built from; true neighbours are found in it.
        recall: share of the true neighbours to find.
        k: neighbours of each query.
        beside: further index files of the same vectors to choose from.
        write: keep what was chosen in the index file.
        report: HTML file for a page with all that is printed, and a picture of the candidates.
        json: print JSON instead of a table.
    """
    opened = {str(path): open_index(path) for path in (index, *beside)}
    rows, asked = read_vectors(vectors), np.asarray(read_vectors(queries))
    checked_recall(recall)
    require_queries(len(asked))
    for name, found in opened.items():
        if len(rows) != len(found):
            raise ConfigError(
                f"--vectors {vectors} has {len(rows):,} vectors, {name} {len(found):,}",
                hint="give the file that the index was built from",
            )
    truth = _truth(opened[str(index)], rows, asked, k)
    rates = load_search_rates()
    if rates is None and beside:
        raise ConfigError(
            "--beside needs to know how fast searches are here",
            hint="run `steelyard retrieve calibrate` first",
        )
    with _ceiling_told(opened, rows, asked, recall, k):
        if rates is None:
            tuned = find_probes(opened[str(index)], asked, truth, recall=recall)
            _show_one(index, opened[str(index)], tuned, recall, k, write, report, json)
            return
        chosen = choose_index(opened, asked, truth, rates, recall=recall)
    if write:
        best = opened[chosen.best.index]
        best.nprobe = chosen.best.nprobe
        best.rerank = chosen.best.rerank
        best.save(Path(chosen.best.index))
    _show(chosen, opened, recall, k, write, report, json)


def _truth(
    found: IVF, rows: NDArray[np.generic], asked: NDArray[np.generic], k: int
) -> NDArray[np.int64]:
    """Return the true neighbours of queries."""
    exact = IVFFlat(found.dim, metric=found.metric)
    for first in range(0, len(rows), _BATCH):
        exact.add(rows[first : first + _BATCH])
    return exact.search(asked, k).ids


@contextmanager
def _ceiling_told(
    opened: Mapping[str, IVF],
    rows: NDArray[np.generic],
    asked: NDArray[np.generic],
    recall: float,
    k: int,
) -> Iterator[None]:
    """Say which codes would reach a recall that those there do not."""
    try:
        yield
    except CapacityError as error:
        coded = [item for item in opened.values() if isinstance(item, (IVFPQ, IVFFastScan))]
        if len(coded) < len(opened):
            raise
        # Whole vectors would have found all: every index keeps codes, and the longest is taken.
        longest = max(coded, key=lambda item: item.codec.parts)
        found = smallest_code(longest, rows, asked, recall=recall, k=k)
        raise CapacityError(
            str(error), hint=f"{found.told()}, or compare more candidates again by --rerank"
        ) from error


def _show_one(
    path: Path,
    found: IVF,
    tuned: Tuned,
    recall: float,
    k: int,
    write: bool,
    report: Path | None,
    json: bool,
) -> None:
    """Print the cells of one index, without forecasts."""
    if write:
        found.nprobe = tuned.nprobe
        found.save(path)
    told = f"{tuned.heldout_recall:.3f} ± {tuned.heldout_error:.3f}"
    facts = Facts(
        [
            ("cells to look into", f"{tuned.nprobe:,} of {found.nlist:,}", ""),
            ("recall", f"{tuned.recall:.3f}", "measured"),
            ("recall of other queries", told, "measured"),
            ("kept in the index", "yes" if write else "no: --write keeps it", ""),
            ("speed", "not forecast: run `steelyard retrieve calibrate` once", ""),
        ]
    )
    title = f"{recall:g} of the {k} nearest in {path}"
    page = Report(title, "", [Section("Tuned", [facts])])
    print_report(page, json=json, html=report, values=asdict(tuned))


def _show(
    chosen: Chosen,
    opened: Mapping[str, IVF],
    recall: float,
    k: int,
    write: bool,
    report: Path | None,
    json: bool,
) -> None:
    """Print the choice with what it was chosen from."""
    best = chosen.best
    told = f"{chosen.heldout_recall:.3f} ± {chosen.heldout_error:.3f}"
    facts = Facts(
        [
            ("index", best.index, ""),
            ("cells to look into", f"{best.nprobe:,} of {opened[best.index].nlist:,}", ""),
            ("candidates compared again, per neighbour", str(best.rerank), ""),
            ("queries per second", f"{1 / best.forecast_s:,.0f}", "fitted"),
            ("queries per second", f"{1 / best.measured_s:,.0f}", "measured"),
            ("recall", f"{best.recall:.3f}", "measured"),
            ("recall of other queries", told, "measured"),
            ("measurements", str(chosen.measurements), ""),
            ("kept in the index", "yes" if write else "no: --write keeps it", ""),
        ]
    )
    rows: list[list[Cell]] = [
        [
            item.index,
            item.nprobe,
            item.rerank,
            pretty(item.forecast_s, "s"),
            pretty(item.measured_s, "s") if item.measured_s else "",
            f"{item.recall:.3f}",
        ]
        for item in chosen.candidates
    ]
    names = ("index", "cells", "candidates", "query, forecast", "measured", "recall")
    table = Table([Column(name) for name in names], rows, "the fastest by forecast first")
    picture = Chart(choice_chart(chosen, recall))
    sections = [Section("Chosen", [facts]), Section("Candidates", [picture, table])]
    page = Report(f"{recall:g} of the {k} nearest", "", sections)
    print_report(page, json=json, html=report, values=asdict(chosen))
