"""A cluster in a file of one's own: parts beside it, and all of its faults at once."""

import pytest

from steelyard import catalog
from steelyard.errors import CatalogError, SteelyardError
from steelyard.plan.machines import machines_of

_CHIP = """
[accelerators.X1]
vendor = "me"
kind = "gpu"
year = 2025
peak_flops_per_s = { bf16 = "500 TFLOP/s" }
memory_bytes = "96 GB"
memory_bytes_per_s = "3 TB/s"
"""
_LAB = """
[clusters.lab]
site = "bologna"
year = 2025
num_nodes = 4
accelerator = "X1"
accelerators_per_node = 8
injection_bytes_per_s = "100 GB/s"
"""


def test_a_cluster_of_a_file_takes_parts_that_stand_beside_it(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(_LAB + _CHIP)
    found = machines_of(cluster=str(path), nodes=2)
    assert found.cluster.num_accelerators == 16 and found.cluster.name == "lab"
    assert found.accelerator.peak_flops_per_s["bf16"] == 500e12 and found.site.name == "bologna"
    path.write_text(_LAB.replace("X1", "A100-SXM4-80GB"))
    assert machines_of(cluster=f"{path}#lab").accelerator.memory_bytes == 80e9


def test_a_file_says_what_it_lacks(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(_LAB + _CHIP)
    with pytest.raises(CatalogError, match="no cluster named 'x'") as caught:
        catalog.cluster(f"{path}#x")
    assert "lab" in caught.value.hint
    path.write_text(_LAB)
    with pytest.raises(CatalogError, match="accelerator 'X1' is not in the catalog"):
        catalog.cluster(str(path))
    path.write_text(_LAB + _LAB.replace("lab", "other"))
    with pytest.raises(CatalogError, match="2 clusters"):
        catalog.cluster(str(path))
    with pytest.raises(CatalogError, match="cannot read"):
        catalog.cluster(str(tmp_path / "none.toml"))


def test_all_faults_are_listed_at_once(tmp_path):
    path = tmp_path / "bad.toml"
    broken = _LAB.replace("num_nodes = 4", "num_nodes = -4\npue = 0.3").replace("= 8", '= "eight"')
    path.write_text(broken.replace("accelerator =", "acceleratr =").replace("GB/s", "GBit"))
    with pytest.raises(SteelyardError, match="6 things are wrong") as caught:
        catalog.cluster(str(path))
    said = str(caught.value)
    for part in ("'acceleratr'", "'accelerators_per_node'", "100 GBit", "missing", "-4", "'pue'"):
        assert part in said
