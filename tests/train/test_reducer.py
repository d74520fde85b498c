"""Equal bits for 1, 2 and 4 workers: the tree of a step, in threads and in processes."""

import contextlib
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

from steelyard.errors import ConfigError
from steelyard.train.gradients import GradientTree
from steelyard.train.measure import GradientNoiseScale
from steelyard.train.session import Session
from steelyard.train.trainer import TokenBatches, next_token_loss, open_session


class Shared:
    """What workers in threads of one process meet at."""

    def __init__(self, count):
        self.barrier = threading.Barrier(count)
        self.values = [None] * count


class ThreadReducer:
    """Adds neighbours first, one pair at a time, in the plainest way."""

    partition = None

    def __init__(self, rank, shared):
        self.rank, self.world_size, self.shared = rank, len(shared.values), shared

    def _all(self, value):
        self.shared.values[self.rank] = value
        self.shared.barrier.wait()
        found = list(self.shared.values)
        self.shared.barrier.wait()
        return found

    def overlapped(self, tree):
        return contextlib.nullcontext()

    def sum_gradients(self, parameters):
        parts = self._all([item.grad.clone() for item in parameters])
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        for item, total in zip(parameters, parts[0], strict=True):
            item.grad = total.clone()

    def gather(self, values):
        return torch.cat(self._all(values))

    def wait(self):
        self.shared.barrier.wait()


def losses_of(config, source, workers, steps, gauges):
    """Train with so many workers, each a thread; return the losses of the first."""
    found = [[] for _ in range(workers)]
    shared = Shared(workers)

    def work(rank):
        session = Session(
            open_session(config, source).module,
            next_token_loss,
            TokenBatches(config, source),
            config,
            callbacks=[gauges[rank]],
            reducer=ThreadReducer(rank, shared),
        )
        found[rank] = [session.step()[0] for _ in range(steps)]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(row == found[0] for row in found)
    return found[0]


@pytest.mark.parametrize("accumulation", [4, 12])
def test_workers_give_equal_bits_at_equal_global_batch(accumulation, config, source):
    small = replace(config.architecture, num_layers=1)
    config = replace(config, architecture=small, batch_size=12, accumulation=accumulation)
    session = open_session(config, source)
    alone = [session.step()[0] for _ in range(4)]
    reports = []
    for workers in (1, 2, 4):
        gauges = [GradientNoiseScale(every=2) for _ in range(workers)]
        assert losses_of(config, source, workers, 4, gauges) == alone
        reports.append(gauges[0].report())
    assert reports[0] == reports[1] == reports[2]


def test_the_tree_adds_groups_pair_by_pair():
    for count, apart in ((1, False), (3, True), (6, False), (8, False), (8, True)):
        weight = nn.Parameter(torch.zeros(5))
        tree = GradientTree([weight], count)
        parts = [torch.randn(5, generator=torch.Generator().manual_seed(n)) for n in range(count)]
        for part in parts:
            weight.grad = part.clone() if weight.grad is None else weight.grad + part
            tree.end_micro_batch(apart=apart)
        tree.end_step()
        groups = 4 if count % 4 == 0 else 2 if count % 2 == 0 else 1
        size = count // groups
        sums = []
        for first in range(0, count, size):
            total = parts[first]
            for part in parts[first + 1 : first + size]:
                total = total + part
            sums.append(total)
        while len(sums) > 1:
            sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
        assert torch.equal(weight.grad, sums[0])


def test_a_gradient_that_is_not_there_counts_as_none():
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    tree = GradientTree([one, other], 2)
    one.grad = torch.ones(2)
    tree.end_micro_batch(apart=False)
    one.grad = torch.ones(2)
    tree.end_micro_batch(apart=False)
    tree.end_step()
    assert one.grad.tolist() == [2, 2] and other.grad is None


def test_shares_that_do_not_come_out_even_are_refused(config, source):
    with pytest.raises(ConfigError, match="2 processes cannot share 1 micro-batches"):
        Session(
            nn.Linear(1, 1),
            next_token_loss,
            TokenBatches(config, source),
            config,
            reducer=ThreadReducer(0, Shared(2)),
        )
