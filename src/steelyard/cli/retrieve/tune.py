"""`steelyard retrieve tune`: the fewest cells for a recall."""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.retrieve import IVFFlat, open_index
from steelyard.retrieve.reading import read_vectors
from steelyard.retrieve.tuning import tune as find_probes
from steelyard.runs.report import Facts, Report, Section

__all__ = ["tune"]

_BATCH = 100_000


def tune(
    index: Path,
    queries: Path,
    *,
    vectors: Path,
    recall: float = 0.95,
    k: int = 10,
    write: Switch = False,
    json: Switch = False,
) -> None:
    """Find the fewest cells to look into for a recall, and check them on other queries.

    Example: steelyard retrieve tune my.index queries.npy --vectors vectors.npy --recall 0.95

    Args:
        index: file that `steelyard retrieve build` wrote.
        queries: .npy, .fvecs or .bvecs file with 20 queries or more; half of them choose, the
            others check.
        vectors: file that the index was built from; true neighbours are found in it.
        recall: share of the true neighbours to find.
        k: neighbours of each query.
        write: keep the number of cells in the index file.
        json: print JSON instead of a table.
    """
    found = open_index(index)
    rows, asked = read_vectors(vectors), np.asarray(read_vectors(queries))
    if len(rows) != len(found):
        raise ConfigError(
            f"--vectors {vectors} has {len(rows):,} vectors, the index {len(found):,}",
            hint="give the file that the index was built from",
        )
    exact = IVFFlat(found.dim, metric=found.metric)
    for first in range(0, len(rows), _BATCH):
        exact.add(rows[first : first + _BATCH])
    truth = exact.search(asked, k).ids
    tuned = find_probes(found, asked, truth, recall=recall)
    if write:
        found.nprobe = tuned.nprobe
        found.save(index)
    facts = Facts(
        [
            ("cells to look into", f"{tuned.nprobe:,} of {found.nlist:,}", ""),
            ("recall", f"{tuned.recall:.3f}", "measured"),
            (
                "recall of other queries",
                f"{tuned.heldout_recall:.3f} ± {tuned.heldout_error:.3f}",
                "measured",
            ),
            ("kept in the index", "yes" if write else "no: --write keeps it", ""),
        ]
    )
    page = Report(f"{recall:g} of the {k} nearest in {index}", "", [Section("Tuned", [facts])])
    print_report(page, json=json, values=asdict(tuned))
