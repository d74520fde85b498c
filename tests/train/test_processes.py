"""Runs of processes: killed ones that go on, and several that share each step."""

import random
import signal
from dataclasses import replace

import pytest
import torch

from steelyard import config as configs
from steelyard.train import TrainResult
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.trainer import train
from steelyard.train.transport.collectives import bytes_sent
from steelyard.train.transport.config import LinkSpeed


@pytest.fixture
def killed_run(start_processes, exit_codes, source, tmp_path):
    """Kill a run some steps after each of its starts, then let it end; return it and a whole one.

    A kill is (steps, seconds after them).
    """

    def run(config, kills):
        configs.dump(config, tmp_path / "wanted.json")
        for kill in kills:
            child = start_processes(1, "kill_child.py", tmp_path, *kill)
            assert exit_codes(child) == [-signal.SIGKILL]
        assert TrainResult.load(tmp_path / "run") is None
        return train(config, source, tmp_path / "run"), train(config, source, tmp_path / "whole")

    return run


def test_killed_run_continues_with_the_same_bits(config, killed_run):
    config = replace(config, steps=20, checkpoint_every=3)
    killed, whole = killed_run(config, [(5, 0), (11, 0)])
    assert killed.losses == whole.losses and killed.eval_losses == whole.eval_losses


@pytest.mark.slow
def test_many_kills(config, killed_run):
    rng = random.Random(1)
    config = replace(config, steps=200, checkpoint_every=2, eval_every=10)
    killed, whole = killed_run(
        config, [(rng.randint(1, 8), 0.02 * rng.random()) for _ in range(20)]
    )
    assert killed.losses == whole.losses and killed.eval_losses == whole.eval_losses


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_of_torch_distributed_sum_and_train_alike(
    count, config, source, tmp_path, start_processes, exit_codes
):
    link = ParallelConfig(link=LinkSpeed(bits_per_s=1e10))
    config = replace(config, steps=5, accumulation=4, checkpoint_every=3, parallel=link)
    configs.dump(config, tmp_path / "wanted.json")
    assert exit_codes(start_processes(count, "transport_child.py", tmp_path)) == [0] * count
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(count)]
    plain = torch.stack([torch.randn(960, generator=seeded(rank)) for rank in range(count)])
    for how in ("halving-doubling", "ring", "tree", "built-in"):
        for rank, of_rank in enumerate(found):
            total, sent = of_rank[how]
            assert torch.equal(total, found[0][how][0])
            assert torch.allclose(total.double(), plain.double().sum(0), atol=1e-6)
            assert sent == bytes_sent(how, 4 * 960, count, rank)
    shared, alone = TrainResult.load(tmp_path / "run"), train(config, source, tmp_path / "alone")
    assert shared and shared.losses == alone.losses and shared.eval_losses == alone.eval_losses
    assert len(list((tmp_path / "run").glob("step-*.safetensors"))) == 2 * count


def seeded(seed):
    return torch.Generator().manual_seed(seed)
