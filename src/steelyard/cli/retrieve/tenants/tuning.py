"""`steelyard retrieve tenants tune`: how many vectors to compare for a recall."""

from pathlib import Path

import numpy as np

from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.retrieve.index import checked_recall, checked_vectors
from steelyard.retrieve.reading import read_vectors
from steelyard.retrieve.tenants import open_tenant_index, tune_probes
from steelyard.runs.report import Facts, Report, Section

__all__ = ["tune"]


def tune(
    folder: Path,
    queries: Path,
    *,
    recall: float = 0.95,
    k: int = 10,
    seed: int = 0,
    json: Switch = False,
) -> None:
    """Find how many vectors to compare for a recall, and check it on other queries.

    Each query is asked for a tenant that is drawn in proportion to what tenants see.

    Example: steelyard retrieve tenants tune shared queries.npy --recall 0.95

    Args:
        folder: folder that `steelyard retrieve tenants build` wrote.
        queries: .npy, .fvecs or .bvecs file of 20 queries or more; every second checks.
        recall: share of the true neighbours to find.
        k: neighbours.
        seed: seed of the draw of tenants.
        json: print JSON instead of a table.
    """
    checked_recall(recall)
    require_range(0, seed=seed)
    index = open_tenant_index(folder)
    asked = checked_vectors(np.asarray(read_vectors(queries)), index.dim, what="queries")
    sizes = index.lists.sizes
    if not sizes.sum():
        raise ConfigError(f"no tenant of {folder} sees a vector", hint="grant some first")
    drawn = np.random.default_rng(seed).choice(len(sizes), len(asked), p=sizes / sizes.sum())
    names = index.tenants
    pairs = [(names[tenant], query) for tenant, query in zip(drawn.tolist(), asked, strict=True)]
    found = tune_probes(index, pairs, k=k, recall=recall)
    facts = Facts(
        [
            ("vectors to compare", f"{found.nprobe:,}", "--nprobe"),
            ("recall", f"{found.recall:.3f}", "of the queries it was chosen on"),
            (
                "recall of others",
                f"{found.heldout_recall:.3f} ± {found.heldout_error:.3f}",
                "measured",
            ),
        ]
    )
    page = Report(f"Probes of {folder}", f"recall {recall:g}", [Section("Tuned", [facts])])
    values = {
        "nprobe": found.nprobe,
        "recall": found.recall,
        "heldout_recall": found.heldout_recall,
        "heldout_error": found.heldout_error,
    }
    print_report(page, json=json, values=values)
