"""Pages and figures of `steelyard data communities`, and the files it writes."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.files import atomic_path
from steelyard.runs.report import Cell, Chart, Column, Facts, Report, Section, Table
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.data.communities import (
        Community,
        CommunityIndex,
        CommunityMetrics,
        Explanation,
    )
    from steelyard.data.graph import CSRGraph

__all__ = [
    "detection_page",
    "evaluation_page",
    "explain_page",
    "explain_values",
    "index_page",
    "index_values",
    "query_page",
    "query_values",
    "write_labels",
    "write_network",
]

_DRAWN, _NAMED, _TIES = 150, 12, 4


def index_values(index: "CommunityIndex", folder: Path) -> dict[str, Any]:
    """Return the figures of an index."""
    from steelyard.data.pack import Pack

    graph, size = index.graph, (folder / "index.pack").stat().st_size
    return {
        "folder": str(folder),
        "accounts": len(graph),
        "searched": len(index),
        "followers": graph.num_columns,
        "edges": graph.num_edges,
        "left_out": int(Pack.open(folder / "graph.pack")["skipped"].sum()),
        "num_hashes": index.settings.num_hashes,
        "bands": index.settings.bands,
        "rows": index.settings.rows,
        "index_bytes": size,
        "index_bytes_at_most": index.settings.index_bytes(len(index)),
        "graph_bytes": (folder / "graph.pack").stat().st_size,
        "threshold": (1 / index.settings.bands) ** (1 / index.settings.rows),
    }


def index_page(values: dict[str, Any]) -> Report:
    """Make the page of an index."""
    facts = Facts(
        [
            ("accounts", f"{values['accounts']:,}", ""),
            ("searched", f"{values['searched']:,}", ""),
            ("edges", f"{values['edges']:,}", "each pair once"),
            ("rows left out", f"{values['left_out']:,}", "an end is missing or no name"),
            ("signature", f"{values['num_hashes']:,} hashes", ""),
            ("table", f"{values['bands']} bands of {values['rows']}", ""),
            ("half are found from similarity", f"about {values['threshold']:.3f}", ""),
            ("index", pretty(values["index_bytes"], "byte"), ""),
            ("graph", pretty(values["graph_bytes"], "byte"), ""),
        ]
    )
    title = "Index of communities"
    return Report(title, f"in {values['folder']}", [Section("Network", [facts])])


def query_values(
    found: "Community", metrics: "CommunityMetrics | None", parts: NDArray[np.int64]
) -> dict[str, Any]:
    """Return the figures of a community."""
    from dataclasses import asdict

    begins = len(found.seeds)
    measured = asdict(metrics) if metrics else {}
    return {
        "seeds": list(found.seeds),
        "method": found.method,
        "candidates": found.candidates,
        "widened": found.widened,
        "cut_buckets": found.cut_buckets,
        "seconds": found.seconds,
        "metrics": {
            name: value if np.isfinite(value) else None for name, value in measured.items()
        },
        "members": [
            {
                "account": name,
                "score": float(found.scores[row]),
                "similarity": float(found.similarity[row]),
                "containment": float(found.containment[row]),
                "degree": int(found.degrees[row]),
                "part": int(parts[begins + row]),
            }
            for row, name in enumerate(found.members)
        ],
    }


def query_page(
    found: "Community",
    metrics: "CommunityMetrics | None",
    parts: NDArray[np.int64],
    alike: NDArray[np.float64],
) -> Report:
    """Make the page of a community."""
    widened = f", widened by {found.widened}" if found.widened else ""
    facts = Facts(
        [
            ("members", f"{len(found.members):,}", "besides the seeds"),
            ("candidates", f"{found.candidates:,}", f"by shared bands{widened}"),
            ("ranked by", found.method, ""),
            ("time", pretty(found.seconds, "s"), ""),
        ]
    )
    sections = [Section("Query", [facts])]
    if len(found.members):
        sections.append(Section("Picture", [_picture(found, parts, alike)]))
    if metrics:
        sections.append(Section("How it holds together", [_measures(metrics)]))
    begins = len(found.seeds)
    rows: list[list[Cell]] = [
        [
            str(name),
            f"{found.similarity[row]:.3f}",
            f"{found.containment[row]:.0%}",
            f"{found.degrees[row]:,}",
            f"{parts[begins + row] + 1}",
        ]
        for row, name in enumerate(found.members)
    ]
    heads = [("similarity", 0), ("contained", 1), ("followers", 0), ("part", 0)]
    columns = [Column("account"), *(Column(name, align="right", rank=rank) for name, rank in heads)]
    note = (
        "similarity is the mean estimated Jaccard similarity to the seeds; contained: share of its "
        "followers that the nearest seed has too"
    )
    sections.append(Section("Members", [Table(columns, rows, caption=note)]))
    told = ", ".join(map(str, found.seeds[:8])) + (" ..." if begins > 8 else "")
    return Report("Community", f"around {told}", sections)


def _measures(metrics: "CommunityMetrics") -> Facts:
    """Return the measures in words."""
    return Facts(
        [
            ("conductance", f"{metrics.conductance:.3f}", "low where few ties lead out"),
            ("density", f"{metrics.density:.3f}", "mean similarity of two members"),
            ("separability", f"{metrics.separability:.3g}", "ties inside over those across"),
            ("cohesiveness", f"{metrics.cohesiveness:.3f}", "high where it falls apart nowhere"),
            ("clustering", f"{metrics.clustering:.3f}", ""),
        ]
    )


def _picture(found: "Community", parts: NDArray[np.int64], alike: NDArray[np.float64]) -> Chart:
    """Draw seeds and the first members."""
    from steelyard.data.communities.layout import placed
    from steelyard.runs.networks import network

    names = [*found.seeds, *found.members][:_DRAWN]
    begins = len(found.seeds)
    near = alike[: len(names), : len(names)]
    spots = placed(near)
    top = float(near.max()) or 1.0
    # The strongest ties of each node: those of all would be the ties of one dense part.
    nearest = np.argsort(-near, axis=1, kind="stable")[:, :_TIES]
    pairs = {
        (min(one, other), max(one, other))
        for one, row in enumerate(nearest.tolist())
        for other in row
        if near[one, other] > 0
    }
    ties = [(one, other, float(near[one, other]) / top) for one, other in sorted(pairs)]
    sizes = np.concatenate((np.full(begins, found.degrees.max(initial=1)), found.degrees))
    nodes = {
        "x": spots[:, 0].tolist(),
        "y": spots[:, 1].tolist(),
        "name": [str(name) for name in names],
        "label": [str(name) if place < begins + _NAMED else "" for place, name in enumerate(names)],
        "group": [f"part {parts[place] + 1}" for place in range(len(names))],
        "size": np.sqrt(sizes[: len(names)]).tolist(),
        "shape": ["seed" if place < begins else "member" for place in range(len(names))],
    }
    shown = f"{len(names) - begins} of {len(found.members)} members" if names else ""
    spec = network(nodes, ties, title="Members and their strongest ties", subtitle=shown)
    return Chart(spec, "Ties are similarities of followers; colours are parts found by walktrap.")


def explain_values(told: "Explanation") -> dict[str, Any]:
    """Return what is known of an account."""
    return {
        "account": told.account,
        "degree": told.degree,
        "candidates": told.candidates,
        "nearest": [
            {
                "account": name,
                "similarity": float(told.similarity[row]),
                "error": float(told.error[row]),
                "exact": float(told.exact[row]),
                "shared": int(told.shared[row]),
            }
            for row, name in enumerate(told.nearest)
        ],
    }


def explain_page(told: "Explanation") -> Report:
    """Make the page of an account."""
    facts = Facts(
        [
            ("followers", f"{told.degree:,}", ""),
            ("candidates", f"{told.candidates:,}", "accounts that share a band with it"),
        ]
    )
    rows: list[list[Cell]] = [
        [
            str(name),
            f"{told.similarity[row]:.3f} ± {told.error[row]:.3f}",
            f"{told.exact[row]:.3f}",
            f"{told.shared[row]:,}",
        ]
        for row, name in enumerate(told.nearest)
    ]
    heads = ("estimated", "exact", "shared followers")
    columns = [Column("account"), *(Column(name, align="right") for name in heads)]
    return Report(
        f"Account {told.account}",
        "what it is like",
        [Section("Account", [facts]), Section("Nearest", [Table(columns, rows)])],
    )


def evaluation_page(values: dict[str, Any]) -> Report:
    """Make the page of an evaluation."""
    rows: list[list[Cell]] = [
        [
            method,
            f"{item['area']:.3f}",
            f"{item['candidates']:.0%}",
            pretty(item["median_s"], "s"),
        ]
        for method, item in values.items()
    ]
    heads = ("area under recall", "candidates", "median time")
    columns = [Column("method"), *(Column(name, align="right") for name in heads)]
    return Report("Recall", "of known communities", [Section("Methods", [Table(columns, rows)])])


def detection_page(values: dict[str, Any]) -> Report:
    """Make the page of the communities of a whole network."""
    facts = Facts(
        [
            ("accounts", f"{values['accounts']:,}", ""),
            ("edges", f"{values['edges']:,}", ""),
            ("communities", f"{len(values['sizes']):,}", ""),
            ("modularity", f"{values['modularity']:.4f}", ""),
            ("largest", ", ".join(f"{size:,}" for size in values["sizes"][:8]), "accounts"),
        ]
    )
    return Report("Communities", "by the Leiden method", [Section("Network", [facts])])


def write_labels(path: Path, graph: "CSRGraph", labels: NDArray[np.int64]) -> None:
    """Write each account and its community as CSV."""
    with atomic_path(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["account", "community"])
        writer.writerows((graph.ids[row], int(label)) for row, label in enumerate(labels))


def write_network(
    kind: str,
    out: Path,
    *,
    nodes: int,
    fans: int,
    communities: int,
    edges: int,
    mixing: float,
    seed: int,
) -> None:
    """Write a made network: files of edges, and `labels.csv` where there are communities."""
    from steelyard.data.graph import PlantedFans, planted_graph, rmat_edges

    labels: NDArray[np.int64] | None = None
    if kind == "fans":
        source = PlantedFans(stars=nodes, communities=communities, fans=fans, seed=seed)
        for part in range(source.parts):
            accounts, followers = source.draw(part)
            _write_edges(out / f"edges-{part:04d}.parquet", "fan", followers, "star", accounts)
        labels = source.labels
    elif kind == "planted":
        one, other, labels = planted_graph(nodes, mixing=mixing, seed=seed)
        _write_edges(out / "edges-0000.parquet", "src", one, "dst", other)
    else:
        one, other = rmat_edges(max(nodes - 1, 1).bit_length(), edges, seed=seed)
        _write_edges(out / "edges-0000.parquet", "src", one, "dst", other)
    if labels is not None:
        with atomic_path(out / "labels.csv") as beside, beside.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["node", "community"])
            writer.writerows(enumerate(labels.tolist()))


def _write_edges(
    path: Path, one: str, first: NDArray[np.int64], other: str, second: NDArray[np.int64]
) -> None:
    """Write one file of edges."""
    import pyarrow as pa
    from pyarrow import parquet

    with atomic_path(path) as beside:
        parquet.write_table(pa.table({one: first, other: second}), beside)
