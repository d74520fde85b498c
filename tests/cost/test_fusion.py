"""Fusion of operations, and switches between models."""

import math

import pytest

from steelyard import catalog
from steelyard.cost.fusion import FusionGraph, FusionStep, fuse, fuse_best, intensity, monarch
from steelyard.cost.switching import expert_run_s, nodes_for
from steelyard.errors import CapacityError, ConfigError
from steelyard.plan.experts import expert_node

NAMES = ["gemm0", "mul", "transpose", "gemm1"]


def test_the_monarch_block_has_the_published_intensities():
    graph = monarch(4, 512, 16, 512, 256)
    for groups, published in (
        ([[name] for name in NAMES], 39.5),
        ([NAMES[:3], NAMES[3:]], 102.6),
        ([NAMES], 410.4),
    ):
        assert intensity(fuse(graph, groups)) == pytest.approx(published, rel=0.01)


def test_a_kernel_keeps_what_only_it_uses():
    graph = FusionGraph(
        steps=(
            FusionStep(name="a", kind="matmul", flops=10, reads=("x",), writes="y"),
            FusionStep(name="b", kind="elementwise", flops=1, reads=("y",), writes="z"),
            FusionStep(name="c", kind="elementwise", flops=1, reads=("y", "z"), writes="out"),
        ),
        tensor_bytes={"x": 1, "y": 10, "z": 100, "out": 1000},
    )
    first, second = fuse(graph, [["a", "b"], ["c"]])
    # y is used again later and has to be written.
    assert (first.moved_bytes, first.inner_bytes) == (1 + 10 + 100, 0)
    assert second.moved_bytes == 10 + 100 + 1000
    whole = fuse(graph, [["a", "b", "c"]])[0]
    assert (whole.moved_bytes, whole.inner_bytes) == (1001, 220)
    with pytest.raises(ConfigError, match="not the operations"):
        fuse(graph, [["a"], ["c", "b"]])
    with pytest.raises(ConfigError, match="without a size"):
        fuse(FusionGraph(steps=graph.steps, tensor_bytes={"x": 1}), [["a"], ["b"], ["c"]])


def test_the_search_stops_at_transposes_and_at_the_memory():
    graph = monarch(4, 512, 16, 512, 256)
    assert [item.names for item in fuse_best(graph, sram_bytes=1e9)] == [tuple(NAMES)]
    halted = fuse_best(graph, sram_bytes=1e9, across_transposes=False)
    assert [item.names for item in halted] == [tuple(NAMES[:3]), ("gemm1",)]
    assert len(fuse_best(graph, sram_bytes=1)) == 4
    assert len(fuse_best(graph, sram_bytes=1e5, tiles=512)) == 1


def test_switches_and_footprint_are_the_published_ones():
    node, dgx, h100 = (expert_node(name) for name in ("SN40L", "DGX-A100", "DGX-H100"))
    size = 13.48e9
    assert dgx.switch_s(size) / node.switch_s(size) == pytest.approx(31, rel=0.05)
    assert h100.switch_s(size) / node.switch_s(size) == pytest.approx(15, rel=0.05)
    assert [nodes_for(item, 850, size) for item in (node, dgx)] == [1, 19]
    assert dgx.switch_s(size, from_disk=True) > dgx.switch_s(size)
    with pytest.raises(CapacityError, match="exceeds"):
        nodes_for(dgx, 1, 1e12)
    with pytest.raises(ConfigError, match="no node"):
        expert_node("DGX-1")


def test_longer_answers_and_larger_batches_take_longer():
    arch, node = catalog.architecture_by_name("llama-2-7b"), expert_node("DGX-A100")
    short = expert_run_s(arch, node, batch=1, prompt=256, output=1)
    long = expert_run_s(arch, node, batch=1, prompt=256, output=20)
    many = expert_run_s(arch, node, batch=8, prompt=256, output=20)
    assert short < long < many < 8 * long
    assert math.isfinite(many)
