"""`steelyard retrieve tenants generate`: vectors, queries and grants to try the other verbs on."""

from pathlib import Path

import numpy as np

from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.errors import DataError
from steelyard.files import folder_beside, replace_folder
from steelyard.retrieve.tenants.generating import MadeTenants, MadeTenantsOptions
from steelyard.runs.report import Facts, Report, Section

__all__ = ["generate"]


def generate(
    out: Path,
    *,
    vectors: int = 20_000,
    dim: int = 64,
    tenants: int = 50,
    queries: int = 100,
    seed: int = 0,
    json: Switch = False,
) -> None:
    """Make vectors, queries and grants to try an index for tenants with.

    Example: steelyard retrieve tenants generate demo --tenants 50

    Args:
        out: folder for vectors.npy, queries.npy and grants.csv; it holds nothing yet.
        vectors: vectors, in clusters.
        dim: numbers in a vector.
        tenants: tenants of falling sizes, named tenant-1 and so on; every second one sees vectors
            of a few clusters, the others see any.
        queries: queries.
        seed: seed of the draws.
        json: print JSON instead of a table.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is there already", hint="choose another folder")
    options = MadeTenantsOptions(
        vectors=vectors, dim=dim, tenants=tenants, queries=queries, seed=seed
    )
    made = MadeTenants.drawn(options)
    with folder_beside(out) as beside:
        np.save(beside / "vectors.npy", made.vectors)
        np.save(beside / "queries.npy", made.queries)
        _write_grants(beside / "grants.csv", made)
        replace_folder(beside, out)
    sizes = [len(own) for own in made.grants.values()]
    facts = [
        ("vectors", f"{vectors:,} of {dim} numbers", "vectors.npy"),
        ("queries", f"{queries:,}", "queries.npy"),
        ("tenants", f"{tenants:,}, who see {min(sizes):,} to {max(sizes):,} each", "grants.csv"),
    ]
    page = Report(f"Made tenants {out}", f"seed {seed}", [Section("Files", [Facts(facts)])])
    values = {"vectors": vectors, "tenants": tenants, "queries": queries, "grants": sum(sizes)}
    print_report(page, json=json, values=values)
    if not json:
        words = ("retrieve", "tenants", "build", out / "vectors.npy")
        say_next(*words, "--grants", out / "grants.csv", "--out", "shared")


def _write_grants(path: Path, made: MadeTenants) -> None:
    """Write a row for each vector that a tenant sees."""
    with path.open("w") as file:
        file.write("id,tenant\n")
        for tenant, own in made.grants.items():
            file.writelines(f"{number},{tenant}\n" for number in own.tolist())
