"""What is said of a trace, against the slow count, and traces that are written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import TraceError
from steelyard.serve.traces import TraceRow, read_rows, write_rows
from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.statistics import burstiness, describe_trace, prefix_sharing
from steelyard.serve.traces.statistics.sharing import prefix_hits

BLOCK = 4


def hashed(chains, tokens=None):
    rows = [
        TraceRow(
            arrival_s=float(place),
            input_tokens=tokens or max(BLOCK * len(chain) - 1, 1),
            output_tokens=1,
            hash_ids=tuple(chain),
            block_tokens=BLOCK,
        )
        for place, chain in enumerate(chains)
    ]
    return TraceColumns.of(rows)


def slow_hits(columns, cache_blocks):
    """Walk a cache that gives up the least recently used block, prompt by prompt."""
    order, hit = [], 0
    edges = columns.block_starts
    for row, size in enumerate(columns.input_tokens):
        chain = columns.blocks[edges[row] : edges[row + 1]].tolist()
        for place, name in enumerate(chain):
            if name not in order[-cache_blocks:] if cache_blocks else True:
                break
            hit += min(BLOCK, int(size) - place * BLOCK)
        for name in reversed(chain):
            if name in order:
                order.remove(name)
            order.append(name)
    return hit


@st.composite
def trees(draw):
    """Draw prompts that continue earlier ones at any depth: equal ids mean equal beginnings."""
    chains, fresh = [], 0
    for _ in range(draw(st.integers(1, 14))):
        base = draw(st.sampled_from(chains)) if chains else []
        kept = base[: draw(st.integers(0, len(base)))]
        more = draw(st.integers(0 if kept else 1, 3))
        chains.append(kept + list(range(fresh, fresh + more)))
        fresh += more
    return chains


@settings(max_examples=40, deadline=None)
@given(trees(), st.integers(1, 12))
def test_one_pass_gives_the_hits_of_a_cache_of_any_size(chains, cache_blocks):
    columns = hashed(chains)
    hits = prefix_hits(columns)
    assert hits.hit_tokens(cache_blocks * BLOCK) == slow_hits(columns, cache_blocks)
    assert hits.hit_tokens(np.inf) == slow_hits(columns, 10**6)
    for row, parent in enumerate(hits.parent.tolist()):
        depth = int(hits.depth[row])
        assert (parent < 0) == (depth == 0)
        assert parent < 0 or chains[parent][:depth] == chains[row][:depth]


def test_conversations_share_what_was_said_before():
    rows = [
        TraceRow(arrival_s=0.0, input_tokens=128, output_tokens=8, session="a"),
        TraceRow(arrival_s=1.0, input_tokens=640, output_tokens=8, session="b"),
        TraceRow(arrival_s=2.0, input_tokens=256, output_tokens=8, session="a"),
    ]
    found = prefix_sharing(TraceColumns.of(rows), (64, 10**6))
    assert found.unbounded == found.bounded[10**6] == pytest.approx(128 / 1024)
    assert found.bounded[64] == 0.0
    assert prefix_sharing(TraceColumns.of([rows[0], rows[0]]), ()).unbounded == 0.5
    alone = [TraceRow(arrival_s=0.0, input_tokens=8, output_tokens=8)]
    assert prefix_sharing(TraceColumns.of(alone), ()) is None


def test_bursts_show_in_the_windows_they_fill():
    rng = np.random.default_rng(0)
    even = np.cumsum(rng.exponential(0.2, 20_000))
    found = burstiness(even - even[0])
    assert found.rate_per_s == pytest.approx(5.0, rel=0.05)
    assert found.cv == pytest.approx(1.0, abs=0.05)
    assert all(item.dispersion == pytest.approx(1.0, abs=0.35) for item in found.windows)
    minutes = np.repeat(rng.gamma(1.0, 1.0, 200), 300).cumsum()
    bursts = np.sort(rng.choice(minutes, 20_000))
    uneven = np.sort(np.concatenate([np.arange(200) * 60.0, bursts]))
    assert burstiness(uneven - uneven[0]).windows[2].dispersion > 1.0
    assert burstiness(np.repeat(np.arange(50) * 3.0, 4)).resolution_s == pytest.approx(3.0)


def test_the_hour_of_the_day_explains_a_rate_that_follows_it():
    hours = np.arange(96)
    counts = np.where(hours % 24 == 14, 90, 30)
    times = np.concatenate(
        [hour * 3600 + np.linspace(0, 3599, n) for hour, n in zip(hours, counts, strict=True)]
    )
    shape = burstiness(times - times[0]).day
    assert shape.explained == pytest.approx(1.0)
    assert int(np.argmax(shape.hourly)) == 14
    later = burstiness(times - times[0], first_s=6 * 3600.0).day
    assert int(np.argmax(later.hourly)) == 20


def test_clients_and_lengths_are_counted():
    rows = [
        TraceRow(
            arrival_s=float(place),
            input_tokens=10 * (place + 1),
            output_tokens=100 - place,
            client="big" if place % 4 else "small",
        )
        for place in range(40)
    ]
    found = describe_trace(TraceColumns.of(rows), ())
    assert (found.clients, found.top_tenth) == (2, 0.75)
    assert found.largest[0].client == "big" and found.largest[0].share == 0.75
    assert found.length_correlation == pytest.approx(-1.0)
    assert found.lengths["input"]["p50"] == np.quantile([row.input_tokens for row in rows], 0.5)
    assert sum(found.rates.rate_per_s) > 0
    once = describe_trace(TraceColumns.of(rows[:1] * 3), ())
    assert once.arrivals is None and once.rates is None


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 50),
            st.integers(1, 40),
            st.integers(1, 9),
            st.sampled_from(["default", "a,b", "c"]),
            st.sampled_from(["", "s1"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_what_is_written_is_read_again(tmp_path_factory, told):
    path = tmp_path_factory.mktemp("traces") / "trace"
    at_s, rows = 0.0, []
    for gap, size, answer, client, session, is_hashed in told:
        at_s += gap / 8
        ids = tuple(range(-(-size // 16))) if is_hashed else ()
        rows.append(
            TraceRow(
                arrival_s=at_s,
                input_tokens=size,
                output_tokens=answer,
                client=client,
                session=session,
                hash_ids=ids,
                block_tokens=16,
            )
        )
    write_rows(path, rows)
    again = list(read_rows(path))
    for one, other in zip(rows, again, strict=True):
        told = [
            (r.input_tokens, r.output_tokens, r.client, r.session, r.hash_ids) for r in (one, other)
        ]
        assert told[0] == told[1] and one.arrival_s == pytest.approx(other.arrival_s, abs=1e-6)
    if not any(row.hash_ids for row in rows):
        return
    assert TraceColumns.of(again).rows() == TraceColumns.of(rows).rows() or rows[0].arrival_s > 0


def test_columns_refuse_what_they_cannot_hold():
    with pytest.raises(TraceError, match="no rows"):
        TraceColumns.of([])
    sizes = [
        TraceRow(arrival_s=0.0, input_tokens=1, output_tokens=1, hash_ids=(1,), block_tokens=size)
        for size in (16, 32)
    ]
    with pytest.raises(TraceError, match=r"\[16, 32\]"):
        TraceColumns.of(sizes)
