"""Sums over processes: the same bits in each, the bytes of the formulas, and emulated links."""

import contextlib
import copy
import queue
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from steelyard.errors import ConfigError
from steelyard.train import overlap
from steelyard.train.gradients import GradientTree
from steelyard.train.overlap import OverlappedSum
from steelyard.train.transport import shaper as shapers
from steelyard.train.transport.collectives import bytes_sent, check_count, sum_over
from steelyard.train.transport.config import LinkSpeed
from steelyard.train.transport.shaper import Shaper

WAYS = ("halving-doubling", "ring", "tree")


class ThreadTransport:
    """One of several workers in threads of one process, with a queue per pair."""

    def __init__(self, rank, world_size, queues):
        self.rank, self.world_size, self.queues = rank, world_size, queues
        self.sent_bytes = self.sent_messages = 0

    def send(self, values, peer):
        if values.numel():
            self.sent_bytes += values.numel() * values.element_size()
            self.sent_messages += 1
            self.queues[self.rank, peer].put(values.clone())

    def receive(self, values, peer):
        if values.numel():
            values.copy_(self.queues[peer, self.rank].get(timeout=20))

    def swap(self, outgoing, to, incoming, source):
        self.send(outgoing, to)
        self.receive(incoming, source)


def by_workers(count, work):
    """Call `work` once per worker with its transport, all at once; return both."""
    queues = {(a, b): queue.SimpleQueue() for a in range(count) for b in range(count)}
    transports = [ThreadTransport(rank, count, queues) for rank in range(count)]
    with ThreadPoolExecutor(count) as threads:
        return transports, list(threads.map(work, transports))


def summed(how, vectors):
    """Sum vectors, each by a worker of its own; return the sums and the transports."""
    totals = [item.clone() for item in vectors]
    transports, _ = by_workers(len(vectors), lambda it: sum_over(it, totals[it.rank], how))
    return totals, transports


def drawn(count, size):
    return [
        torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in range(count)
    ]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_all_workers_end_with_the_same_sum(how, count):
    if how == "halving-doubling" and count in (3, 5):
        return
    for size in (1, 7, 120, 1001):
        vectors = drawn(count, size)
        totals, _ = summed(how, vectors)
        assert all(torch.equal(total, totals[0]) for total in totals)
        plain = torch.stack(vectors).double().sum(0)
        assert torch.allclose(totals[0].double(), plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", ["halving-doubling", "tree"])
def test_pairs_of_pairs_are_added_as_the_tree_of_micro_batches(how):
    vectors = drawn(8, 333)
    sums = vectors
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    assert torch.equal(summed(how, vectors)[0][0], sums[0])


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("count", [2, 4, 8])
def test_each_worker_sends_the_bytes_of_the_formula(how, count):
    size = 960
    _, transports = summed(how, drawn(count, size))
    for transport in transports:
        assert transport.sent_bytes == bytes_sent(how, 4 * size, count, transport.rank)
    messages = [transport.sent_messages for transport in transports]
    doublings = count.bit_length() - 1
    if how != "tree":
        assert messages == [2 * (count - 1 if how == "ring" else doublings)] * count
    assert sum(transport.sent_bytes for transport in transports) == 2 * (count - 1) * 4 * size


class Branched(nn.Module):
    """Layers of which some steps leave one out, and one is never used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.sometimes, self.never = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, number):
        for layer in self.layers:
            x = layer(x).tanh()
        return (self.sometimes(x) if number == 2 else x).square().mean()


def gradients_of(module, tree, numbers, surround):
    """Run the backward passes of some micro-batches; return the gradients."""
    for number in numbers:
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(number))
        with surround(tree) if number == numbers[-1] else contextlib.nullcontext():
            module(x, number).backward()
        tree.end_micro_batch(apart=False)
    tree.end_step()
    return [item.grad for item in module.parameters()]


@pytest.mark.parametrize("count", [2, 4])
def test_gradients_summed_during_the_backward_pass_have_the_same_bits(count, monkeypatch):
    monkeypatch.setattr(overlap, "_LEAST_BYTES", 600)  # many small buckets
    whole = Branched()
    modules = [copy.deepcopy(whole) for _ in range(count)]  # drawing is not safe in threads
    tree = GradientTree(list(whole.parameters()), 8)
    wanted = gradients_of(whole, tree, list(range(8)), lambda _: contextlib.nullcontext())

    def work(transport):
        module, share = modules[transport.rank], 8 // count
        tree = GradientTree(list(module.parameters()), 8, count)
        early = OverlappedSum(
            tree,
            lambda values: sum_over(transport, values, "halving-doubling"),
            is_first=not transport.rank,
        )
        numbers = list(range(transport.rank * share, (transport.rank + 1) * share))
        found = []
        for _ in range(2):  # the second pass has the buckets of the order seen in the first
            module.zero_grad()
            found.append(gradients_of(module, tree, numbers, lambda _: early.around_backward()))
        return found

    _, found = by_workers(count, work)
    for gradients in (step for worker in found for step in worker):
        for one, other in zip(gradients, wanted, strict=True):
            assert (one is None) == (other is None)
            assert other is None or torch.equal(one, other)
    assert wanted[-1] is None and wanted[-3] is not None


def test_a_gradient_given_twice_is_refused():
    weight = nn.Parameter(torch.ones(3))
    early = OverlappedSum(GradientTree([weight], 1), lambda _: None, is_first=True)
    with pytest.raises(ConfigError, match=r"overlap = false|twice"), early.around_backward():
        weight.sum().backward()
        weight.sum().backward()


def test_numbers_of_processes_without_pairs_are_refused_by_name():
    check_count("ring", 3)
    check_count("halving-doubling", 8)
    with pytest.raises(ConfigError, match="3 processes cannot share") as caught:
        check_count("halving-doubling", 3)
    assert "ring" in caught.value.hint


def test_a_shaped_link_waits_for_its_bytes_by_sleeping(monkeypatch):
    now, slept = 100.0, []

    class Clock:
        @staticmethod
        def monotonic():
            return now

        @staticmethod
        def sleep(seconds):
            nonlocal now
            slept.append(seconds)
            now += seconds

    monkeypatch.setattr(shapers, "time", Clock)
    link = Shaper(LinkSpeed(bits_per_s=1e6, latency_s=0.25))
    link.hold(125_000)  # a million bits
    assert slept == [pytest.approx(1.25)]
    link.hold(125_000, messages=2)
    assert slept[1] == pytest.approx(1.5)
    assert link.speed.seconds(125_000, 2) == pytest.approx(1.5)
    # Threads that send at once share the link: the second leaves when the first has left.
    monkeypatch.setattr(Clock, "sleep", lambda seconds: slept.append(seconds))
    now = 200.0
    link.hold(125_000)
    link.hold(125_000)
    assert slept[2:] == [pytest.approx(1.25), pytest.approx(2.25)]


def test_links_that_carry_nothing_are_refused():
    with pytest.raises(ConfigError, match="bits_per_s"):
        LinkSpeed(bits_per_s=0)
