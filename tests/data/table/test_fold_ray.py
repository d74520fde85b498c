"""Folds on a Ray cluster of two nodes: the same bits, whoever folds, and whoever is killed."""

import os
import signal
import time

import numpy as np
import pytest
from tests.ray_machines import two_machines

from steelyard.data.table import DataTable, ProfileFold, RowHashFold, folds
from steelyard.errors import CapacityError
from steelyard.parallel import parallel_map, stream_map

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def address():
    with two_machines(1) as address:
        yield address


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    made = tmp_path_factory.mktemp("cluster")
    rng = np.random.default_rng(0)
    for name in range(6):
        rows = [f"{place},{rng.lognormal():.4f},{'abc'[place % 3]}" for place in range(800)]
        rows[name] = "broken"
        (made / f"{name}.csv").write_text("id,price,shop\n" + "\n".join(rows) + "\n")
    return DataTable.scan(made)


def bits(found):
    return [
        {name: values.tolist() for name, values in sketch.sections().items()}
        for result in found.results.values()
        if isinstance(result, dict)
        for sketch in result.values()
    ]


def test_a_cluster_changes_no_bit(table, address):
    given = [ProfileFold(), RowHashFold(), folds.moments(), folds.quantiles(), folds.frequent()]
    here = table.fold(*given)
    for workers, memory in ((2, None), (3, "100MB")):
        there = table.fold(*given, workers=workers, cluster=address, memory=memory)
        assert repr(there.results["profile"]) == repr(here.results["profile"])
        assert there.results["row hashes"] == here.results["row hashes"]
        assert repr(bits(there)) == repr(bits(here))
        assert there.quarantine.counts == here.quarantine.counts


def node_of(item):
    import ray

    time.sleep(0.1)
    return item, ray.get_runtime_context().get_node_id()


def test_calls_reach_both_nodes_and_come_back_in_order(address):
    found = parallel_map(node_of, range(40), workers=4, cluster=address)
    assert [item for item, _ in found] == list(range(40))
    assert len({node for _, node in found}) == 2


class Once:
    """Kills its worker at the first call for an item."""

    def __init__(self, folder, item, times):
        self.folder, self.item, self.times = folder, item, times

    def __call__(self, item):
        if item == self.item and len(list(self.folder.iterdir())) < self.times:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item


def test_a_worker_of_the_cluster_that_is_killed_is_replaced(address, tmp_path):
    work = Once(tmp_path, 3, 1)
    assert list(stream_map(work, range(8), workers=2, cluster=address)) == list(range(8))
    with pytest.raises(CapacityError, match="the worker of 3 died"):
        list(stream_map(Once(tmp_path, 3, 9), range(8), workers=2, cluster=address))


def fails(item):
    raise ValueError(f"no {item}")


def test_an_error_of_a_call_is_raised_as_it_is(address):
    with pytest.raises(ValueError, match="no 0"):
        list(stream_map(fails, range(3), workers=2, cluster=address))


def test_templates_and_itemsets_of_a_cluster_are_those_of_one_process(address, tmp_path):
    from steelyard.data.logs import LogTable, find_templates
    from steelyard.data.mining import mine_table

    for name in range(3):
        lines = [f"job {place * name} ended after {place % 7} s" for place in range(200)]
        (tmp_path / f"{name}.log").write_text("\n".join([*lines, "disk full"]) + "\n")
    logs = LogTable.scan(str(tmp_path / "*.log"), format="")
    here, there = (find_templates(logs, cluster=where)[0] for where in ("", address))
    assert here.templates.texts == there.templates.texts
    rng = np.random.default_rng(0)
    baskets = [" ".join(map(str, np.unique(rng.zipf(1.5, 6) % 40))) for _ in range(900)]
    for name in range(3):
        path = tmp_path / "baskets" / f"{name}.dat"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(baskets[300 * name : 300 * name + 300]) + "\n")
    shopping = DataTable.scan(tmp_path / "baskets")
    for how in ("son", "pfp"):
        one, other = (
            mine_table(shopping, 0.05, how=how, cluster=where)[0] for where in ("", address)
        )
        assert one.to_arrow().equals(other.to_arrow())
