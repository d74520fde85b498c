"""A Ray cluster of two machines that are both this one."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["two_machines"]


@contextmanager
def two_machines(cpus: int) -> Iterator[str]:
    """Hold a cluster; the test is skipped where Ray is not installed.

    Args:
        cpus: processors that each machine says it has.

    Yields:
        Its address.
    """
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus})
    cluster.add_node(num_cpus=cpus)
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()
