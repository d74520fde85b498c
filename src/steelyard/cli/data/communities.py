"""`steelyard data communities`: who belongs to a few accounts of a large network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts

from steelyard.cli.data.scanned import kinds_of, scanned
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError, DataError
from steelyard.runs.progress import progress
from steelyard.units import parse

if TYPE_CHECKING:
    from steelyard.data.graph import TableEdges

__all__ = ["app"]

app = cyclopts.App(
    name="communities", help="Index a network once; find the community around accounts at once."
)
_Sources = Annotated[
    str, cyclopts.Parameter(help="Files, patterns such as 'edges/*.parquet', and folders.")
]
_Seeds = Annotated[str, cyclopts.Parameter(help="Accounts that belong to the community.")]


@app.command
def index(
    *sources: _Sources,
    out: Path,
    account: str = "",
    follower: str = "",
    undirected: Switch = False,
    types: str = "",
    min_degree: int = 1,
    num_hashes: int = 1000,
    bands: int = 500,
    threshold: float = 0.0,
    bits: Literal[8, 16, 32] = 8,
    scheme: Literal["k-permutation", "one-permutation"] = "k-permutation",
    memory: str = "1 GB",
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Index the accounts of an edge list by who follows them; after a kill the same line goes on.

    Example: steelyard data communities index 'edges/*.parquet' --out network --min-degree 100

    Args:
        *sources: files, patterns such as 'edges/*.parquet', and folders.
        out: folder of the index.
        account: column of the account that is followed; the second one when it is left out.
        follower: column of who follows it; the first one when it is left out.
        undirected: both columns hold accounts, and an edge joins them both ways.
        types: kinds of columns of text files, such as "src=text, dst=text".
        min_degree: accounts with fewer followers are not searched.
        num_hashes: numbers in the signature of an account.
        bands: bands of the table that finds candidates; more find less similar accounts.
        threshold: similarity of which 95 in 100 pairs are found, 0 to 1, in place of bands.
        bits: bits of each number that ranking compares.
        scheme: k-permutation, or one-permutation where all accounts have thousands of followers.
        memory: memory for sorting edges, such as "512 MB".
        json: print JSON instead of a table.
        report: HTML file for the page.
    """
    from steelyard.cli.data.communities_pages import index_page, index_values

    edges = _edges(sources, account, follower, types)
    from steelyard.data.communities import CommunityIndex, IndexSettings
    from steelyard.data.sketch.lsh import choose_bands

    if not 0 <= threshold <= 1:
        raise ConfigError(f"--threshold is {threshold}, but must be from 0 to 1")
    if threshold:
        bands, _ = choose_bands(num_hashes, threshold)
    settings = IndexSettings(
        num_hashes=num_hashes, bands=bands, min_degree=min_degree, bits=bits, scheme=scheme
    )
    memory_bytes = round(parse(memory, "byte", where="--memory"))
    with progress("index", quiet=json) as advance:
        made = CommunityIndex.build(
            edges,
            out,
            settings,
            undirected=undirected,
            memory_bytes=memory_bytes,
            done=lambda stage, share: advance(_overall(stage, share), stage),
        )
    values = index_values(made, out)
    print_report(index_page(values), json=json, html=report, values=values)


@app.command
def query(
    folder: Path,
    *seeds: _Seeds,
    size: int = 50,
    method: Literal["auto", "average", "agglomerative", "pagerank"] = "auto",
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Find the community around accounts.

    Example: steelyard data communities query network alice bob carol --size 100 --report c.html

    Args:
        folder: the index.
        *seeds: accounts that belong to the community.
        size: members to find.
        method: average ranks by the mean similarity to the seeds, agglomerative adds one member
            after the other, pagerank walks from the seeds, and auto tries the first two on the
            seeds themselves.
        json: print JSON instead of tables.
        report: HTML file with the picture of the community.
    """
    from steelyard.cli.data.communities_pages import query_page, query_values
    from steelyard.data.communities import CommunityIndex

    if not seeds:
        raise ConfigError(
            "data communities query needs accounts",
            hint="steelyard data communities query FOLDER ACCOUNT ...",
        )
    opened = CommunityIndex.open(folder)
    # Loading compiled functions takes longer than a query, and is no part of its time.
    opened.query(seeds, min(size, 2), method)
    found = opened.query(seeds, size, method)
    everyone = [*found.seeds, *found.members]
    metrics = opened.metrics(everyone) if len(everyone) > 1 else None
    parts, alike = opened.parts(everyone)
    values = query_values(found, metrics, parts)
    page = query_page(found, metrics, parts, alike)
    print_report(page, json=json, html=report, values=values)


@app.command
def explain(folder: Path, account: str, *, nearest: int = 10, json: Switch = False) -> None:
    """Show what an account is like, with exact figures beside those of the index.

    Example: steelyard data communities explain network alice

    Args:
        folder: the index.
        account: an account.
        nearest: most similar accounts to list.
        json: print JSON instead of a table.
    """
    from steelyard.cli.data.communities_pages import explain_page, explain_values
    from steelyard.data.communities import CommunityIndex

    if nearest < 1:
        raise ConfigError(f"--nearest is {nearest}, but must be 1 or more")
    told = CommunityIndex.open(folder).explain(account, nearest)
    print_report(explain_page(told), json=json, values=explain_values(told))


@app.command
def evaluate(
    folder: Path,
    labels: Path,
    *,
    num_seeds: int = 5,
    restarts: int = 5,
    least_members: int = 25,
    json: Switch = False,
) -> None:
    """Measure on known communities how many members each method finds from a few of them.

    Example: steelyard data communities evaluate network labels.csv

    Args:
        folder: the index.
        labels: table of two columns: account, and its community.
        num_seeds: seeds of a query.
        restarts: queries of a community, with other seeds each.
        least_members: smaller communities are left out.
        json: print JSON instead of a table.
    """
    from steelyard.cli.data.communities_pages import evaluation_page
    from steelyard.data.communities import CommunityIndex, recall_areas

    rows, _ = scanned((str(labels),), {}).collect()
    if rows.num_columns < 2:
        raise DataError(f"{labels} has one column", hint="give an account and its community")
    names = dict(zip(*(rows.column(place).to_pylist() for place in (0, 1)), strict=True))
    opened = CommunityIndex.open(folder)
    methods = ("average", "agglomerative", "pagerank", "auto")
    found = {
        method: recall_areas(
            opened,
            names,
            method,
            num_seeds=num_seeds,
            restarts=restarts,
            least_members=least_members,
        )
        for method in methods
    }
    values = {
        method: {
            "area": item.mean,
            "candidates": item.candidates,
            "median_s": float(sorted(item.seconds)[len(item.seconds) // 2]),
        }
        for method, item in found.items()
    }
    print_report(evaluation_page(values), json=json, values=values)


@app.command
def detect(
    *sources: _Sources,
    out: Path | None = None,
    first: str = "",
    second: str = "",
    types: str = "",
    resolution: float = 1.0,
    json: Switch = False,
) -> None:
    """Cut a whole network into communities by the Leiden method; directions do not count.

    Example: steelyard data communities detect edges.csv --out labels.csv

    Args:
        *sources: files, patterns such as 'edges/*.parquet', and folders.
        out: CSV file that takes each account and its community.
        first: column of one end; the first one when it is left out.
        second: column of the other end; the second one when it is left out.
        types: kinds of columns of text files, such as "src=text, dst=text".
        resolution: higher finds more and smaller communities.
        json: print JSON instead of a table.
    """
    import tempfile

    from steelyard.cli.data.communities_pages import detection_page, write_labels
    from steelyard.data.graph import build_graph
    from steelyard.data.graph.leiden import leiden, modularity

    edges = _edges(sources, second, first, types)
    with tempfile.TemporaryDirectory() as folder:
        graph = build_graph(edges, Path(folder) / "graph.pack", undirected=True)
        labels = leiden(graph, resolution=resolution)
        quality = modularity(graph, labels, resolution)
        if out is not None:
            write_labels(out, graph, labels)
    sizes = [int((labels == label).sum()) for label in range(int(labels.max()) + 1)]
    values = {
        "accounts": len(graph),
        "edges": graph.num_edges // 2,
        "modularity": quality,
        "sizes": sizes,
    }
    print_report(detection_page(values), json=json, values=values)


@app.command
def generate(
    kind: Literal["fans", "planted", "rmat"],
    *,
    out: Path,
    nodes: int = 10_000,
    fans: int = 100_000,
    communities: int = 100,
    edges: int = 1_000_000,
    mixing: float = 0.3,
    seed: int = 0,
) -> None:
    """Write a network to try things on, as Parquet files of edges, and its true communities.

    Example: steelyard data communities generate fans --out made --nodes 10000 --fans 200000

    Args:
        kind: fans who follow popular stars of one to three communities; planted communities with
            power-law degrees; or rmat, skewed degrees without communities.
        out: folder for the files.
        nodes: stars or nodes; rmat takes the next power of two.
        fans: fans, of which each follows some twenty stars.
        communities: communities of stars.
        edges: edges of rmat.
        mixing: share of the edges of a planted network that leave their community.
        seed: seed.
    """
    from steelyard.cli.data.communities_pages import write_network

    write_network(
        kind,
        out,
        nodes=nodes,
        fans=fans,
        communities=communities,
        edges=edges,
        mixing=mixing,
        seed=seed,
    )


_STAGES = {
    "sort edges": (0.0, 0.3),
    "merge columns": (0.3, 0.05),
    "merge rows": (0.35, 0.1),
    "number nodes": (0.45, 0.05),
    "sign neighbours": (0.5, 0.2),
    "sort bands (lsh)": (0.7, 0.25),
}
"""Where each stage begins and its share of the whole, as on a network of five million edges."""


def _overall(stage: str, share: float) -> float:
    """Return the share of the whole that is done."""
    begins, width = _STAGES.get(stage, (0.95, 0.05))
    return begins + width * share


def _edges(sources: tuple[str, ...], rows: str, columns: str, types: str) -> "TableEdges":
    """Look at the files and choose the columns."""
    if not sources:
        raise ConfigError(
            "no file of edges", hint="such as steelyard data communities index edges.csv --out net"
        )
    table = scanned(sources, kinds_of(types))
    names = table.schema.names
    if len(names) < 2 and not (rows and columns):
        raise DataError(
            f"{table.files[0].path} has one column, {names[0]!r}",
            hint="edges need two, such as src and dst",
        )
    from steelyard.data.graph import TableEdges

    return TableEdges(table, rows or names[1], columns or names[0])
