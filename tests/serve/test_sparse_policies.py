import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import CapacityError, ConfigError
from steelyard.serve.sparse.policies import H2O, Adore, Full, Sinks, TopK, Window
from steelyard.serve.sparse.slots import SlotTable, slab_width


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Window(0), "capacity is 0"),
        (lambda: Sinks(4, num_sinks=4), "num_sinks is 4"),
        (lambda: H2O(8, recent=1.0), "recent is 1.0"),
        (lambda: TopK(0), "attended is 0"),
        (lambda: Adore(capacity=20, recent=0.8), "num_sinks \\+ recent \\* capacity is 20"),
        (lambda: Adore(capacity=32, rebuild=32), "rebuild is 32"),
        (lambda: SlotTable(Full(), 0, 8), "at least 1"),
    ],
)
def test_bad_sizes_are_refused(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_slabs_are_whole_blocks_and_do_not_grow_with_length():
    assert (
        slab_width(Adore(capacity=256, rebuild=8), 10_000, 1)
        == 272
        == slab_width(Adore(capacity=256, rebuild=8), 100_000, 16)
    )
    assert slab_width(Window(256), 10_000, 64) == 320
    assert slab_width(Full(), 1000, 16) == 1008 == slab_width(Window(5000), 1000, 16)


def test_priorities_protect_what_they_promise():
    positions, now, scores = (
        np.array([[0, 1, 5, 8, 9, -1]]),
        np.array([9]),
        np.array([[1.0, 5.0, 2.0, 0.0, 0.0, 0.0]], dtype=np.float32),
    )
    infinite = {
        "sinks": Sinks(5, num_sinks=1).priority(positions, now, scores)[0, :5],
        "h2o": H2O(4).priority(positions, now, scores)[0, :5],
        "adore": Adore(capacity=5, rebuild=1, num_sinks=2, recent=0.2).priority(
            positions, now, scores
        )[0, :5],
        "full": Full().priority(positions, now, scores)[0, :5],
        "top": TopK(3).priority(positions, now, scores)[0, :5],
    }
    found = {name: np.flatnonzero(np.isinf(worth)).tolist() for name, worth in infinite.items()}
    assert found == {
        "sinks": [0],
        "h2o": [3, 4],
        "adore": [0, 1, 4],
        "full": [0, 1, 2, 3, 4],
        "top": [0, 1, 2, 3, 4],
    }


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    capacity=st.integers(6, 20),
    rebuild=st.integers(0, 5),
    chunk=st.integers(1, 7),
    policy=st.sampled_from(["window", "sinks", "adore"]),
)
def test_slots_hold_what_the_slow_obvious_version_holds(seed, capacity, rebuild, chunk, policy):
    rng = np.random.default_rng(seed)
    made = {
        "window": Window(capacity),
        "sinks": Sinks(capacity, num_sinks=2),
        "adore": Adore(capacity=capacity, rebuild=rebuild, num_sinks=1, recent=0.2),
    }[policy]
    table = SlotTable(made, 3, 80, chunk=chunk)
    held = [set(), set(), set()]
    for _ in range(8):
        scores = rng.random((3, 80)).astype(np.float32)
        active = np.sort(rng.choice(3, rng.integers(1, 4), replace=False))
        counts = rng.integers(1, chunk + 1, len(active))
        starts = table.lengths[active]
        again = table.rebuild_set(scores, np.isin(np.arange(3), active[counts == 1]))
        assert set(zip(*(item.tolist() for item in again), strict=True)) == wanted(
            made, held, scores, active[counts == 1], table.lengths
        )
        new = [
            (row, start + step)
            for row, start, count in zip(active, starts, counts, strict=True)
            for step in range(count)
        ]
        pairs = sorted(new + list(zip(*again, strict=True)))
        rows, positions = (np.array(column) for column in zip(*pairs, strict=True))
        slots = table.on_append(rows, positions)
        assert len(
            {(row, slot) for row, slot in zip(rows.tolist(), slots.tolist(), strict=True)}
        ) == len(rows)
        table.select_release(table.of_slots(scores))
        for row, position in pairs:
            held[row].add(int(position))
        for row in range(3):
            worth = made.priority(
                np.arange(80)[None], table.lengths[row : row + 1] - 1, scores[row : row + 1]
            )[0]
            order = sorted(held[row], key=lambda place, worth=worth: (-worth[place], -place))
            held[row] = set(order[:capacity])
            live = table.positions[row][table.positions[row] >= 0]
            assert (
                set(live.tolist()) == held[row] == set(np.flatnonzero(table.cached[row]).tolist())
            )
            assert len(live) == len(held[row])


def wanted(policy, held, scores, rows, lengths):
    """Which tokens to rebuild, one by one."""
    found = set()
    for row in rows:
        if not policy.rebuild or len(held[row]) < policy.capacity:
            continue
        worth = policy.priority(
            np.arange(80)[None], lengths[row : row + 1] - 1, scores[row : row + 1]
        )[0]
        floor = min(worth[place] for place in held[row])
        better = [
            place
            for place in range(lengths[row])
            if place not in held[row] and scores[row, place] > floor
        ]
        found |= {
            (int(row), place)
            for place in sorted(better, key=lambda place: -scores[row, place])[: policy.rebuild]
        }
    return found


def test_more_tokens_than_empty_slots_are_refused_and_change_nothing():
    table = SlotTable(Window(15), 1, 100)
    table.on_append(np.zeros(16, dtype=np.int64), np.arange(16))
    before = table.positions.copy()
    with pytest.raises(CapacityError, match="empty slots"):
        table.on_append(np.zeros(1, dtype=np.int64), np.array([16]))
    assert (table.positions == before).all()
    table.clear(0)
    assert table.live[0] == table.lengths[0] == 0
