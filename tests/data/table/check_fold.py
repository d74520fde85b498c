"""What every Fold must do, checked on one that is handed in."""

import numpy as np

from steelyard.data.pack import Pack, pack_bytes
from steelyard.data.table import Quarantine
from steelyard.data.table.parts import FoldedPart, merge_parts, packed_part, unpacked_part


def sections_of(fold, state):
    return {name: np.array(values) for name, values in fold.sections(state).items()}


def same(one, other, *, exact):
    """Compare states as arrays; sums of floats differ by rounding where rows are cut elsewhere."""
    if one.keys() != other.keys():
        return False
    pairs = [(one[name], other[name]) for name in one]
    return all(
        np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")
        or (
            not exact
            and mine.dtype.kind == "f"
            and np.allclose(mine, theirs, rtol=1e-9, atol=1e-7, equal_nan=True)
        )
        for mine, theirs in pairs
    )


def fed(fold, schema, batches):
    state = fold.init(schema)
    for batch in batches:
        fold.update(state, batch)
    return state


def recut(table, batches, rows):
    """Cut the same rows into batches of another size."""
    import pyarrow as pa

    return pa.Table.from_batches(batches, table.schema).combine_chunks().to_batches(rows)


def check_fold(fold, table, *, exact=True, mergeable=None):
    """Check a fold on a table of three parts or more.

    Args:
        fold: what is checked.
        table: a `DataTable`.
        exact: whether states do not depend on how rows are cut into batches, to the last bit.
        mergeable: compares the result of all rows at once with that of merged parts; None where
            they must be equal as states are.
    """
    schema = table.schema
    parts = [list(table.read(part, Quarantine())) for part in table.partitions]
    assert len(parts) >= 3
    every = [batch for part in parts for batch in part]
    whole = fed(fold, schema, every)

    # Batches of any size.
    for rows in (1, 97, 10**6):
        given = recut(table, every, rows) if rows > 1 else recut(table, parts[0], rows)
        expected = whole if rows > 1 else fed(fold, schema, parts[0])
        found = fed(fold, schema, given)
        assert same(sections_of(fold, found), sections_of(fold, expected), exact=exact), rows

    # Through a pack, and on from there.
    first = fed(fold, schema, parts[0])
    again = fold.of(schema, Pack(pack_bytes(fold.sections(first))).sections())
    assert same(sections_of(fold, again), sections_of(fold, first), exact=True)
    for state in (first, again):
        for batch in parts[1]:
            fold.update(state, batch)
    assert same(sections_of(fold, again), sections_of(fold, first), exact=True)
    assert repr_of(fold, again) == repr_of(fold, first)

    # Nothing to the left or right changes nothing.
    for left, right in ((parts[0], []), ([], parts[0])):
        merged = fed(fold, schema, left)
        fold.merge(merged, fed(fold, schema, right))
        alone = fed(fold, schema, parts[0])
        assert same(values_of(fold, merged), values_of(fold, alone), exact=True)

    # Parts merged are the whole.
    merged = fed(fold, schema, parts[0])
    for part in parts[1:]:
        later = fed(fold, schema, part)
        before = sections_of(fold, later)
        fold.merge(merged, later)
        assert same(sections_of(fold, later), before, exact=True), "merging changed the later part"
    if mergeable is None:
        assert same(sections_of(fold, merged), sections_of(fold, whole), exact=exact)
    else:
        mergeable(fold.finish(merged), fold.finish(whole))

    # Runs that wait in files are those that wait in memory.
    check_shelf(fold, table)


def values_of(fold, state):
    """Return a state as arrays without those that only steer what comes next."""
    return {
        name: values
        for name, values in sections_of(fold, state).items()
        if not name.endswith((".chunk", "quantiles.facts")) and name.split(".")[-1] != "facts"
    }


def repr_of(fold, state):
    return repr(fold.sections(state))


def check_shelf(fold, table):
    import tempfile
    from pathlib import Path

    packed = []
    for partition in table.partitions:
        part = FoldedPart.empty(table.schema, [fold])
        for batch in table.read(partition, part.quarantine):
            part.rows += len(batch)
            fold.update(part.states[0], batch)
        packed.append(packed_part(part, [fold]))

    def merged(shelf):
        parts = (unpacked_part(item, table.schema, [fold]) for item in packed)
        return merge_parts(parts, table.schema, [fold], shelf=shelf)

    with tempfile.TemporaryDirectory() as folder:
        kept, held = merged(Path(folder)), merged(None)
        assert not list(Path(folder).iterdir())
    assert kept.rows == held.rows
    assert same(sections_of(fold, kept.states[0]), sections_of(fold, held.states[0]), exact=True)
