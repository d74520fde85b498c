"""Placements over unlike networks: rates of groups by hand, and Holmes' rule as the best order."""

import dataclasses

import numpy as np
import pytest

from steelyard.cost.layout import Layout
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan import placement
from steelyard.plan.placement import ClusterPart, JoinedClusters, LayerWork, place, placements


def _parts(count=2, nodes=2, per_node=8, fast=20e9, slow=2e9, **more):
    """Return equal clusters, joined by a slow network."""
    parts = tuple(
        ClusterPart(
            name=f"part {index}",
            nodes=nodes,
            per_node=per_node,
            node_bytes_per_s=200e9,
            network_bytes_per_s=fast,
            **more,
        )
        for index in range(count)
    )
    return JoinedClusters(parts=parts, between_bytes_per_s=slow)


_WORK = LayerWork(
    num_layers=24,
    layer_s=0.01,
    tensor_bytes=2e8,
    gradient_bytes=5e8,
    boundary_bytes=5e7,
    micro_batches=16,
)


def test_rates_of_groups_are_those_of_the_slowest_shared_link():
    """Every group against the pairs of its members, one by one."""
    machines = _parts(nodes=2, per_node=4)
    rng = np.random.default_rng(3)
    for group in (
        np.arange(16) // 4,
        np.arange(16) % 4,
        np.arange(16) // 8,
        rng.permutation(16) // 2,
    ):
        rates, crosses = placement._group_rates(machines, group)
        members = {g: np.flatnonzero(group == g) for g in set(group.tolist())}
        leaving = {g for g, who in members.items() if len(set(machines.node[who])) > 1}
        for g, who in members.items():
            expected = 200e9
            if g in leaving:
                mixed = len(set(machines.part[who])) > 1
                sharing = max(
                    len({h for h in leaving if node in machines.node[members[h]]})
                    for node in machines.node[who]
                )
                expected = (2e9 if mixed else 20e9) / sharing
            assert rates[who] == pytest.approx(expected)
        assert crosses == any(len(set(machines.part[who])) > 1 for who in members.values())


def test_pipelines_cross_clusters_and_replicas_do_not():
    """Holmes' rule: tensor groups in a node, replicas in a cluster, stages across clusters."""
    layout = Layout(tensor=4, data=4, pipeline=2)
    best = place(_parts(), [(layout, _WORK)])
    assert best.order == ("tensor", "data", "pipeline")
    assert best.crossing == ("pipeline",)
    assert best.split.layers == (12, 12)
    every = list(placements(_parts(), layout, _WORK))
    assert len(every) == 2 * 6
    assert best.step_s == min(item.step_s for item in every)
    worst = max(every, key=lambda item: item.step_s)
    assert worst.step_s > 1.3 * best.step_s


def test_where_networks_are_alike_no_stage_is_needed():
    """With an Ethernet as fast as the cards, replicas over everything beat a pipeline's bubble."""
    work = dataclasses.replace(_WORK, hidden=0.8, boundary_bytes=1e7)
    choices = [
        (Layout(data=32), dataclasses.replace(work, micro_batches=8)),
        (Layout(data=16, pipeline=2), work),
    ]
    assert place(_parts(), choices).layout.pipeline == 2
    assert place(_parts(slow=20e9), choices).layout.pipeline == 1


def test_slower_clusters_take_fewer_layers():
    """A cluster of slower accelerators gets fewer layers, wherever it stands."""
    parts = (*_parts(1).parts, dataclasses.replace(_parts(1, speed=0.8).parts[0], name="slow"))
    machines = JoinedClusters(parts=parts, between_bytes_per_s=2e9)
    best = place(machines, [(Layout(data=16, pipeline=2), _WORK)])
    layers = dict(zip(best.parts, best.split.layers, strict=True))
    assert layers["slow"] < layers["part 0"]


def test_impossible_layouts_are_refused():
    """A layout that does not fill the machines is no answer; degrees below 1 are an error."""
    with pytest.raises(InfeasibleError, match="no layout fills 32"):
        place(_parts(), [(Layout(data=7), _WORK), (Layout(pipeline=32), _WORK)])
    with pytest.raises(ConfigError, match="at least 1"):
        place(_parts(), [(Layout(data=0), _WORK)])
