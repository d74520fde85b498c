"""`steelyard retrieve tenants build`: an index that tenants share."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.cli.following import say_next
from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.places import require_place
from steelyard.config import load
from steelyard.errors import DataError
from steelyard.files import folder_beside, replace_folder
from steelyard.retrieve.reading import read_vectors
from steelyard.retrieve.tenants import TenantsRecipe, create_store, writing_store
from steelyard.runs.progress import progress
from steelyard.runs.report import Facts, Report, Section
from steelyard.units import pretty

__all__ = ["build"]

_BATCH, _SAMPLE = 50_000, 100_000


def build(
    vectors: Path,
    *,
    grants: Path,
    out: Path,
    metric: Literal["l2", "ip"] = "l2",
    nprobe: int = 1200,
    seed: int = 0,
    recipe: Path | None = None,
    json: Switch = False,
) -> None:
    """Build an index that tenants share, from vectors and a table of grants.

    Example: steelyard retrieve tenants build vectors.npy --grants grants.csv --out shared

    Args:
        vectors: .npy, .fvecs or .bvecs file; a vector's number is its row, from 0.
        grants: .csv or .parquet file with the columns id and tenant, a row for each vector that a
            tenant may see.
        out: folder for the index; it holds none yet.
        metric: l2 for squared distances, ip for inner products.
        nprobe: vectors that a query is compared with, unless a search says otherwise.
        seed: seed of the sample and of the clusters.
        recipe: TOML file with metric, nprobe, branching, leaf_size, shortlist and seed, such as
            recipes/tenants.toml, in the place of those options.
        json: print JSON instead of a table.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"--out {out} is there already", hint="choose another folder")
    require_place(out, "a folder")
    require_range(1, nprobe=nprobe)
    require_range(0, seed=seed)
    rows = read_vectors(vectors)
    by_tenant = _read_grants(grants, len(rows))
    wanted = TenantsRecipe(metric=metric, nprobe=nprobe, seed=seed)
    if recipe is not None:
        wanted = load(recipe, TenantsRecipe)
    index = wanted.index(rows.shape[1])
    began_s = time.perf_counter()
    total = float(len(rows) + sum(len(ids) for ids in by_tenant.values()))
    with progress("build", total=total, quiet=json) as advance:
        places = np.random.default_rng(wanted.seed).permutation(len(rows))[:_SAMPLE]
        index.train(rows[np.sort(places)], expected=len(rows), seed=wanted.seed)
        # A build that is killed leaves no half of an index in the place of a whole one.
        with folder_beside(out) as made:
            create_store(made, index)
            memory = _filled(made, rows, by_tenant, advance)
            replace_folder(made, out)
    values = {
        "vectors": len(rows),
        "tenants": len(by_tenant),
        "grants": sum(len(ids) for ids in by_tenant.values()),
        "memory_bytes": memory,
        "seconds": time.perf_counter() - began_s,
    }
    _show(out, values, json)
    if not json:
        say_next("retrieve", "tenants", "search", out, "queries.npy", "--tenant NAME")


def _filled(
    folder: Path,
    rows: NDArray[np.generic],
    by_tenant: dict[str, NDArray[np.int64]],
    advance: Callable[[float, str], None],
) -> dict[str, int]:
    """Put vectors and grants into a new store, and return its memory by part."""
    done = 0
    with writing_store(folder) as store:
        for first in range(0, len(rows), _BATCH):
            part = rows[first : first + _BATCH]
            store.add(part)
            done += len(part)
            advance(float(done), f"{done:,} vectors")
        for tenant, ids in by_tenant.items():
            store.grant(ids, tenant)
            done += len(ids)
            advance(float(done), f"grants of {tenant}")
        store.snapshot()
        return store.index.memory_bytes()


def _read_grants(path: Path, count: int) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of each tenant's vectors."""
    import polars as pl

    try:
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"cannot read --grants {path}: {error}", hint="give a CSV or Parquet file"
        ) from error
    missing = [name for name in ("id", "tenant") if name not in frame.columns]
    if missing:
        raise DataError(
            f"--grants {path} has no column {missing[0]}",
            hint=f"it has {', '.join(frame.columns)}",
        )
    if not len(frame):
        # Columns without rows have no kind: nobody is granted anything yet.
        return {}
    if not frame["id"].dtype.is_integer():
        raise DataError(f"--grants {path}: id is {frame['id'].dtype}", hint="give whole numbers")
    ids = frame["id"].fill_null(-1).to_numpy()
    wrong = np.flatnonzero((ids < 0) | (ids >= count) | frame["tenant"].is_null().to_numpy())
    if len(wrong):
        row = int(wrong[0])
        number, tenant = (
            "nothing" if one is None else repr(one) for one in frame.select("id", "tenant").row(row)
        )
        raise DataError(
            f"--grants {path}: row {row + 1} grants vector {number} to {tenant}",
            hint=f"there are vectors 0 to {count - 1}, and each row needs a tenant",
        )
    parts = frame.with_columns(pl.col("tenant").cast(pl.String)).partition_by(
        "tenant", as_dict=True, maintain_order=True
    )
    return {str(key[0]): part["id"].to_numpy().astype(np.int64) for key, part in parts.items()}


def _show(out: Path, values: dict[str, object], json: bool) -> None:
    """Print what was built."""
    memory = values["memory_bytes"]
    assert isinstance(memory, dict)
    facts = [
        ("vectors", f"{values['vectors']:,}", ""),
        ("tenants", f"{values['tenants']:,}, who see {values['grants']:,} vectors in all", ""),
        ("memory", pretty(sum(memory.values()), "byte"), "measured"),
        ("of it lists of tenants", pretty(memory["lists"], "byte"), "measured"),
        ("time", pretty(float(str(values["seconds"])), "s"), "measured"),
    ]
    page = Report(f"Index {out}", "shared by tenants", [Section("Index", [Facts(facts)])])
    print_report(page, json=json, values=values)
