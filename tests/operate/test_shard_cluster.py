"""Stores of real processes: rows outlive nodes, and nothing is written twice over."""

import threading
import time

import numpy as np
import pytest

from steelyard.errors import DataError, DataLostError, StoreError
from steelyard.operate.shards.cluster import ShardCluster, StoreOptions
from steelyard.operate.shards.policy import Adaptive

KEYS = np.arange(2000, dtype=np.uint64)
OPTIONS = StoreOptions(row_bytes=40, shards=8, keys=len(KEYS))


def values_of(keys, salt=0):
    """Values that tell their keys."""
    return np.repeat(((keys + np.uint64(salt)) % 251).astype(np.uint8)[:, None], 40, axis=1)


def wait_for(is_done, timeout_s=20.0):
    end_s = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.05)


def check(cluster, keys=KEYS, salt=0):
    lengths, values = cluster.get(keys)
    assert (lengths == 40).all()
    assert np.array_equal(values, values_of(keys, salt))


def test_two_nodes_keep_rows_through_a_kill_and_a_restart(tmp_path):
    with ShardCluster(nodes=2, store=tmp_path, options=OPTIONS) as cluster:
        cluster.put(KEYS, values_of(KEYS))
        check(cluster)
        found = cluster.scan(500, 1500)
        assert found.keys.tolist() == list(range(500, 1501))
        lengths, _ = cluster.get(np.array([5000]))
        assert lengths.tolist() == [-1]
        with pytest.raises(DataError, match="at most 40 bytes"):
            cluster.put(KEYS[:1], np.zeros((1, 41), np.uint8))
        with pytest.raises(DataError, match="keys are"):
            cluster.get(np.array([0.5]))
        cluster.kill("n1")
        check(cluster)
        cluster.put(KEYS[:100], values_of(KEYS[:100], 7))  # with the copies that are left
        cluster.kill("n0")
        wait_for(lambda: len(cluster.status()["lost"]) == 8)
        with pytest.raises(DataLostError, match="keys 0 to 249 are lost: no holder is left: n0"):
            cluster.get(KEYS[:10])
        cluster.start("n0")  # the last holder of all, with its log
        wait_for(lambda: not cluster.status()["lost"])
        check(cluster, KEYS[:100], 7)
        check(cluster, KEYS[100:])


@pytest.mark.slow
def test_a_folder_goes_on_with_a_later_controller(tmp_path):
    with ShardCluster(nodes=2, store=tmp_path, options=OPTIONS) as cluster:
        cluster.put(KEYS, values_of(KEYS))
        with pytest.raises(StoreError, match="another process"):
            ShardCluster(nodes=2, store=tmp_path)
        before = cluster.status()["map_version"]
    with ShardCluster(nodes=2, store=tmp_path) as cluster:
        check(cluster)
        assert cluster.status()["map_version"] > before


@pytest.mark.slow
def test_four_nodes_lose_nothing_while_one_dies_and_comes_back(tmp_path):
    with ShardCluster(nodes=4, store=tmp_path, options=OPTIONS) as cluster:
        cluster.put(KEYS, values_of(KEYS))
        acknowledged, stop = {}, threading.Event()

        def write():
            salt = 1
            while not stop.is_set():
                keys = np.random.default_rng(salt).choice(KEYS, 20, replace=False)
                cluster.put(keys, values_of(keys, salt))
                acknowledged.update(dict.fromkeys(keys.tolist(), salt))
                salt += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for name in ("n1", "n2"):
                time.sleep(0.5)
                cluster.kill(name)
                wait_for(lambda name=name: cluster.status()["nodes"][name]["state"] == "dead")
                cluster.wait_whole()
                cluster.start(name)
        finally:
            stop.set()
            writer.join()
        keys = np.array(sorted(acknowledged), np.uint64)
        salts = np.array([acknowledged[key] for key in keys.tolist()], np.uint64)
        _, found = cluster.get(keys)
        assert np.array_equal(found[:, 0], ((keys + salts) % np.uint64(251)).astype(np.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_stopped_node_is_suspected_replaced_and_writes_nothing(tmp_path, transport):
    options = StoreOptions(row_bytes=40, shards=8, keys=len(KEYS), transport=transport)
    with ShardCluster(nodes=3, store=tmp_path, options=options) as cluster:
        cluster.put(KEYS, values_of(KEYS))
        epochs = {shard.id: shard.epoch for shard in cluster.map.shards}
        led = [s for s in cluster.map.shards if s.replicas[0] == "n0"]
        cluster.hang("n0")
        wait_for(lambda: cluster.status()["nodes"]["n0"]["state"] == "suspect")
        cluster.put(KEYS, values_of(KEYS, 3))  # waits until others write
        for shard in cluster.map.shards:
            is_led = shard.id in [item.id for item in led]
            assert (shard.epoch > epochs[shard.id]) == is_led
            assert shard.replicas[0] != "n0"
        cluster.resume("n0")
        wait_for(lambda: cluster.status()["nodes"]["n0"]["state"] == "up")
        check(cluster, salt=3)


@pytest.mark.slow
def test_a_full_disk_refuses_writes_and_keeps_reads(tmp_path):
    options = StoreOptions(row_bytes=40, shards=4, keys=len(KEYS), disk_bytes=300_000)
    with ShardCluster(
        nodes=2, store=tmp_path, options=options, policy=Adaptive(balance=False)
    ) as cluster:
        cluster.put(KEYS, values_of(KEYS))
        cluster.client()._deadline_s = 1.0
        with pytest.raises(StoreError, match="full"):
            for _ in range(10):
                cluster.put(KEYS, values_of(KEYS))
        check(cluster)
        wait_for(lambda: any(node["is_full"] for node in cluster.status()["nodes"].values()))


@pytest.mark.slow
def test_nodes_tell_each_other_of_a_stopped_one_which_refutes_it_later(tmp_path):
    with ShardCluster(nodes=3, store=tmp_path, options=OPTIONS) as cluster:
        cluster.put(KEYS, values_of(KEYS))
        cluster.hang("n0")
        # They find out by their own pings: the controller has told nobody whom it suspects.
        wait_for(lambda: cluster.status()["nodes"]["n0"]["suspected_by"] == ["n1", "n2"])
        cluster.wait_dead("n0")
        cluster.put(KEYS[:100], values_of(KEYS[:100], 5))
        cluster.resume("n0")
        wait_for(lambda: cluster.status()["nodes"]["n0"]["suspected_by"] == [])
        wait_for(lambda: cluster.status()["nodes"]["n0"]["refuted"] >= 1)
        cluster.wait_whole()
        check(cluster, KEYS[:100], 5)
        assert [cluster.status()["nodes"][n]["suspected_by"] for n in ("n1", "n2")] == [[], []]
