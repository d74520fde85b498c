"""A store whose nodes are actors of a Ray cluster of two machines, both of them here."""

import json
import time

import numpy as np
import pytest
from tests.ray_machines import two_machines

from steelyard.errors import BackendError, ConfigError
from steelyard.operate.shards.cluster import ShardCluster, StoreOptions
from steelyard.operate.shards.ray_nodes import RayNodes

KEYS = np.arange(600, dtype=np.uint64)
OPTIONS = StoreOptions(row_bytes=16, shards=8, keys=len(KEYS))
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def address():
    with two_machines(2) as address:
        yield address


def values_of(keys, salt=0):
    return np.repeat(((keys + np.uint64(salt)) % 251).astype(np.uint8)[:, None], 16, axis=1)


def wait_for(is_done, timeout_s=60.0):
    end_s = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.1)


def test_actors_are_spread_and_one_that_is_killed_comes_back_with_its_rows(address, tmp_path):
    launcher = RayNodes(address, nodes=4)
    with ShardCluster(nodes=4, store=tmp_path, options=OPTIONS, launcher=launcher) as cluster:
        hosts = {name: view.host for name, view in cluster._controller.nodes.items()}
        assert len(set(hosts.values())) == 2
        for shard in cluster.map.shards:
            assert len({hosts[name] for name in shard.replicas}) == 2
        cluster.put(KEYS, values_of(KEYS))
        before = cluster.map.addresses["n1"]
        cluster.kill("n1")
        lengths, values = cluster.get(KEYS)  # the copies on the other machine answer
        assert (lengths == 16).all() and np.array_equal(values, values_of(KEYS))
        wait_for(lambda: cluster.map.addresses["n1"] != before)  # Ray has begun it again
        wait_for(lambda: cluster.status()["nodes"]["n1"]["state"] == "up")
        cluster.put(KEYS[:100], values_of(KEYS[:100], 3))
        cluster.wait_whole()
        _, values = cluster.get(KEYS)
        assert np.array_equal(values[:100], values_of(KEYS[:100], 3))
        assert np.array_equal(values[100:], values_of(KEYS[100:]))
        with pytest.raises(ConfigError, match="is no fault of an actor"):
            cluster.hang("n1")


def test_the_command_heals_a_store_on_a_cluster(address, tmp_path, capsys):
    from steelyard.cli.operate.shards import up

    picture = tmp_path / "shards.svg"
    up(
        nodes=3,
        store=tmp_path / "store",
        rows=500,
        kill="n2",
        cluster=address,
        chart=picture,
        json=True,
    )
    told = json.loads(capsys.readouterr().out)
    assert told["lacking"] == 0 and told["healed_s"] > 0
    assert picture.exists()


def test_a_cluster_without_room_is_refused(address):
    with pytest.raises(BackendError, match="no room for 9 nodes"):
        RayNodes(address, nodes=9, wait_s=2.0)
