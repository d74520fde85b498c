"""`steelyard retrieve tune`: the fewest cells for a recall, or the fastest of several indexes."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.search_rates import load_search_rates
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.retrieve import IVF, IVFFlat, open_index
from steelyard.retrieve.choosing import Chosen, choose_index
from steelyard.retrieve.reading import read_vectors
from steelyard.retrieve.tuning import tune as find_probes
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table
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
        json: print JSON instead of a table.
    """
    opened = {str(path): open_index(path) for path in (index, *beside)}
    rows, asked = read_vectors(vectors), np.asarray(read_vectors(queries))
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
    if rates is None:
        _tune_one(index, opened[str(index)], asked, truth, recall, write=write, json=json)
        return
    chosen = choose_index(opened, asked, truth, rates, recall=recall)
    if write:
        best = opened[chosen.best.index]
        best.nprobe = chosen.best.nprobe
        best.rerank = chosen.best.rerank
        best.save(Path(chosen.best.index))
    _show(chosen, opened, f"{recall:g} of the {k} nearest", write=write, json=json)


def _truth(
    found: IVF, rows: NDArray[np.generic], asked: NDArray[np.generic], k: int
) -> NDArray[np.int64]:
    """Return the true neighbours of queries."""
    exact = IVFFlat(found.dim, metric=found.metric)
    for first in range(0, len(rows), _BATCH):
        exact.add(rows[first : first + _BATCH])
    return exact.search(asked, k).ids


def _tune_one(
    path: Path,
    found: IVF,
    asked: NDArray[np.generic],
    truth: NDArray[np.int64],
    recall: float,
    *,
    write: bool,
    json: bool,
) -> None:
    """Find the fewest cells of one index without forecasts."""
    tuned = find_probes(found, asked, truth, recall=recall)
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
    title = f"{recall:g} of the {truth.shape[1]} nearest in {path}"
    page = Report(title, "", [Section("Tuned", [facts])])
    print_report(page, json=json, values=asdict(tuned))


def _show(
    chosen: Chosen, opened: Mapping[str, IVF], title: str, *, write: bool, json: bool
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
    sections = [Section("Chosen", [facts]), Section("Candidates", [table])]
    page = Report(title, "", sections)
    print_report(page, json=json, values=asdict(chosen))
