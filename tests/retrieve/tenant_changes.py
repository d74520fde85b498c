"""Random changes of an index that tenants share, a writer that is killed within them, and a check.

Changes follow from their place alone, so that whoever finds a log knows what it should hold.
"""

import os
import signal
from pathlib import Path

import numpy as np

from steelyard.retrieve.tenants import ClusterTreeIndex, create_store, writing_store
from steelyard.retrieve.tenants.records import read_changes
from steelyard.retrieve.tenants.store import LOG

TENANTS, ALL = 24, 10**9
RNG = np.random.default_rng(5)
MIDDLES = RNG.integers(0, 64, (40, 40))
# Distances of whole numbers are exact in single precision.
POINTS = (MIDDLES[RNG.integers(0, 40, 3000)] + RNG.integers(0, 16, (3000, 40))).astype(np.float32)


def made() -> ClusterTreeIndex:
    index = ClusterTreeIndex(40, shortlist=32, leaf_size=32)
    index.train(POINTS)
    return index


def foreign_or_wrong(index, tenant: str, seen: np.ndarray, rng: np.random.Generator) -> bool:
    """Search as a tenant; return whether it found what it must not, or not the nearest."""
    query = POINTS[int(rng.integers(0, len(POINTS)))]
    is_exact = bool(rng.integers(0, 2))
    found = index.search(query, 5, tenant=tenant, nprobe=ALL if is_exact else 40)
    ids = found.ids[0][found.ids[0] >= 0]
    wanted = np.sort(((POINTS[seen] - query) ** 2).sum(axis=1))[:5]
    is_wrong = is_exact and not np.array_equal(found.distances[0][: len(wanted)], wanted)
    return is_wrong or not seen[ids].all()


def begin(folder: Path) -> np.ndarray:
    """Make a store of all points; return what each tenant sees [T, N]."""
    create_store(folder, made())
    with writing_store(folder) as store:
        store.add(POINTS)
        for tenant in range(TENANTS):
            store.grant(np.array([tenant]), str(tenant))
    (folder / "told").write_bytes(bytes(8))
    seen = np.zeros((TENANTS, len(POINTS)), bool)
    seen[np.arange(TENANTS), np.arange(TENANTS)] = True
    return seen


def change_of(place: int) -> tuple[str, np.ndarray, int]:
    """Return kind, numbers and tenant of a change; a vector that is removed comes back next."""
    rng = np.random.default_rng([7, place - (place % 50 == 11)])
    some, tenant = rng.integers(0, len(POINTS), int(rng.integers(1, 20))), rng.integers(0, TENANTS)
    if place % 50 in (10, 11):
        return ("remove", "add")[place % 50 - 10], some[:1], 0
    return "grant" if rng.random() < 0.6 else "revoke", some, int(tenant)


def apply(seen: np.ndarray, first: int, last: int) -> None:
    """Change what tenants see as changes do."""
    for place in range(first, last):
        kind, numbers, tenant = change_of(place)
        if kind == "remove":
            seen[:, numbers] = False
        elif kind != "add":
            seen[tenant, numbers] = kind == "grant"


def write_on(folder: Path, first: int, last: int, every: int, killed_at: int = -1) -> None:
    """Make changes, tell each when it is made, and save the index after every so many.

    At `killed_at` the process is killed with some of the record written, none or all of it.
    """
    with writing_store(folder) as store, (folder / "told").open("r+b", buffering=0) as told:
        for place in range(first, last):
            kind, numbers, tenant = change_of(place)
            if place == killed_at:
                die_in_next_record(place)
            if kind == "remove":
                store.remove(numbers)
            elif kind == "add":
                store.add(POINTS[numbers], numbers)
            else:
                getattr(store, kind)(numbers, str(tenant))
            os.pwrite(told.fileno(), (place + 1).to_bytes(8, "little"), 0)
            if place % every == every - 1:
                store.snapshot()


def die_in_next_record(place: int) -> None:
    """Let the next record be cut somewhere, and the process end there."""
    write = os.pwrite

    def torn(handle: int, record: bytes, offset: int) -> int:
        write(handle, record[: place % (len(record) + 1)], offset)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    os.pwrite = torn


def told_of(folder: Path) -> int:
    """Return how many changes the writer was told of."""
    return int.from_bytes((folder / "told").read_bytes(), "little")


def logged_of(folder: Path) -> int:
    """Return how many changes are in the log behind the first ones."""
    return sum(1 for _ in read_changes(folder / LOG)) - 1 - TENANTS
