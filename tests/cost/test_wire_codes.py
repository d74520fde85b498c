"""Quantizers of narrow wires: bytes they move, and the time these take."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from steelyard import catalog
from steelyard.cost import Layout, Machine, training_step
from steelyard.cost.held import parameter_count
from steelyard.cost.step import Overlap
from steelyard.cost.wire_codes import WireCode


@pytest.fixture(scope="module")
def free_links() -> Machine:
    """A Frontier whose links take no time, so that quantizing is all that wires cost."""
    cluster = catalog.cluster("Frontier")
    machine = Machine.from_accelerator(
        catalog.accelerator(cluster.accelerator), dtype="fp16", cluster=cluster
    )
    levels = tuple(
        dataclasses.replace(item, bytes_per_s=1e30, latency_s=0.0) for item in machine.levels
    )
    return dataclasses.replace(machine, levels=levels)


def seconds(machine: Machine, **layout: Any) -> float:
    cost = training_step(
        catalog.architecture_by_name("gpt3-13b"),
        machine=machine,
        micro_batch=1,
        sequence_length=2048,
        accumulation=4,
        layout=Layout(data=64, **layout),
        overlap=Overlap(data=0.0),
    )
    return float(cost.time_s)


def test_a_gather_counts_the_kernels_of_owner_and_reader():
    elements, members, code = 960.0, 8.0, WireCode(2.0, 1.0)
    quantize = [(120 * 2.0, 120 * 1.0)]
    widen = [(960 * 1.0, 960 * 2.0)]
    found = code.gathered(np.array(elements), np.array(members))
    assert found == sum(read + write for read, write in quantize + widen)
    kept = code.gathered(np.array(elements), np.array(members), is_kept=True)
    assert kept == sum(read + write for read, write in widen)


def test_a_sum_counts_the_kernels_of_one_exchange_or_two():
    elements, code = 960.0, WireCode(2.0, 0.5)
    quantize = (960 * 2.0, 960 * 0.5)
    once = [quantize, (960 * 0.5, 960 / 8 * 2.0)]
    node = code.scattered(np.array(elements), np.array(8.0), np.array(8.0))
    assert node == sum(map(sum, once))
    # The first exchange leaves an eighth, which is quantized again; of it each keeps a quarter.
    twice = [quantize, (960 * 0.5, 120 * 0.5), (120 * 0.5, 120 / 4 * 2.0)]
    both = code.scattered(np.array(elements), np.array(32.0), np.array(8.0))
    assert both == sum(map(sum, twice))


def test_nothing_is_quantized_alone_or_for_a_wire_as_wide_as_memory(free_links):
    assert WireCode(2.0, 1.0).gathered(np.array(9.0), np.array(1.0)) == 0
    assert WireCode(2.0, 2.0).scattered(np.array(9.0), np.array(8.0), np.array(8.0)) == 0
    plain = seconds(free_links, zero_stage=3)
    assert seconds(free_links, zero_stage=3, weight_wire_bits=16, gradient_wire_bits=16) == plain


def test_quantizing_takes_the_memorys_time_where_links_take_none(free_links):
    slower = seconds(free_links, zero_stage=3, weight_wire_bits=8) - seconds(
        free_links, zero_stage=3
    )
    elements = sum(parameter_count(catalog.architecture_by_name("gpt3-13b")))
    # Forward and backward of four micro-batches: an owner's part is quantized, the whole widened.
    moved = 4 * 2 * elements * (1 + 1 / 64) * (2 + 1)
    assert slower == pytest.approx(moved / free_links.memory_bytes_per_s, rel=1e-6)
