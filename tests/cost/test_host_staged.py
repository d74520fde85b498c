"""Sums in host memory: the published bounds of arXiv 2408.14158, section IV, one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.catalog.hardware import Level
from steelyard.cost.collectives import all_reduce_s, best_all_reduce
from steelyard.cost.host_staged import HostPath, host_staged_s
from steelyard.cost.topology import Topology
from steelyard.errors import ConfigError

PATH = HostPath(
    link_bytes_per_s=27e9,
    memory_bytes_per_s=320e9,
    root_port_bytes_per_s=37.5e9,
    root_port_accelerators=2,
)
FREE = {"memory_bytes_per_s": np.inf, "root_port_bytes_per_s": np.inf}


def _rate(path: HostPath, hosts: int, port: float = 25e9) -> float:
    """Return bytes per second of the message, eight accelerators to a host."""
    return 1e9 / float(host_staged_s(path, 1e9, 8 * hosts, hosts, port_bytes_per_s=port))


def test_memory_is_passed_24_times_and_16_in_pairs():
    assert PATH.memory_passes(8, 2) == 24
    assert replace(PATH, paired=True).memory_passes(8, 2) == 16


@pytest.mark.parametrize(
    ("free", "paired", "hosts", "port", "gb_per_s"),
    [
        # Memory alone: 320 GB/s over 24 and 16 passes, as hosts become many.
        (("root_port_bytes_per_s",), False, 10**6, 1e15, 13.33),
        (("root_port_bytes_per_s",), True, 10**6, 1e15, 20.0),
        # The network card alone: each byte crosses it not quite twice, between two hosts once.
        (tuple(FREE), False, 10**6, 25e9, 12.5),
        (tuple(FREE), False, 2, 25e9, 25.0),
        # Two accelerators at a root port, each way: a quarter of its rate.
        ((), False, 1, 25e9, 9.375),
    ],
)
def test_each_bound_is_the_published_one(free, paired, hosts, port, gb_per_s):
    path = replace(PATH, paired=paired, **{name: FREE[name] for name in free})
    assert _rate(path, hosts, port) / 1e9 == pytest.approx(gb_per_s, rel=1e-3)


@given(st.integers(1, 1000), st.integers(0, 24), st.booleans())
def test_smaller_chunks_and_pairs_are_never_slower(hosts, log_chunk, paired):
    path = replace(PATH, chunk_bytes=2.0**log_chunk, paired=paired)
    finer = replace(path, chunk_bytes=path.chunk_bytes / 2)
    assert _rate(finer, hosts) >= _rate(path, hosts)
    assert _rate(replace(path, paired=True), hosts) >= _rate(replace(path, paired=False), hosts)
    half = host_staged_s(path, 1e9, 8 * hosts, hosts, port_bytes_per_s=25e9, efficiency=0.5)
    assert 1e9 / float(half) == pytest.approx(_rate(path, hosts) / 2)


def test_topologies_take_the_whole_path():
    levels = (
        Level(name="node", members=8, bytes_per_s=9e9),
        Level(name="network", members=64, bytes_per_s=25e9, latency_s=0.0),
    )
    members = np.array([1, 8, 16, 512])
    seconds = all_reduce_s(Topology(levels, host=PATH), 1e9, members, algorithm="host-staged")
    assert seconds[0] == 0
    assert 1e9 / seconds[1:] == pytest.approx([_rate(PATH, hosts) for hosts in (1, 2, 64)])
    assert best_all_reduce(Topology(levels, host=PATH), 1e9, 512) == "host-staged"


def test_impossible_hosts_are_refused():
    with pytest.raises(ConfigError, match="2 things"):
        HostPath(link_bytes_per_s=0.0, root_port_accelerators=0)
