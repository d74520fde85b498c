"""Runs of processes: killed ones that go on, and several that share each step."""

import random
import signal
import time
from dataclasses import replace

import pytest
import torch

from steelyard import config as configs
from steelyard.train import TrainResult
from steelyard.train.checkpoint import CheckpointStore
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


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_give_equal_bits_and_go_on_after_a_change_of_their_number(
    workers, config, source, tmp_path, start_processes, exit_codes
):
    config = replace(config, accumulation=4, checkpoint_every=4)
    configs.dump(config, tmp_path / "wanted.json")
    alone = train(config, source, tmp_path / "alone")

    assert exit_codes(start_processes(workers, "rank_child.py", tmp_path, 6)) == [3] * workers
    assert TrainResult.load(tmp_path / "run") is None
    assert exit_codes(start_processes(workers // 2, "rank_child.py", tmp_path, 0)) == [0] * (
        workers // 2
    )
    shared = TrainResult.load(tmp_path / "run")
    assert shared and shared.losses == alone.losses and shared.eval_losses == alone.eval_losses


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_may_be_killed_at_any_moment(
    config, source, tmp_path, start_processes, exit_codes
):
    wide = replace(config.architecture, hidden_size=128, vocab_size=512)  # shards of more than rows
    config = replace(config, architecture=wide, accumulation=4, checkpoint_every=1, steps=24)
    configs.dump(config, tmp_path / "wanted.json")
    rng, store = random.Random(5), CheckpointStore(tmp_path / "run")
    for number in range(2):
        children = start_processes(2, "rank_child.py", tmp_path, 0)
        begun = store.steps()[-1:] or [0]
        while (store.steps()[-1:] or [0])[0] < begun[0] + 3:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.1)
        children[number % 2].kill()
        assert exit_codes(children)[number % 2] == -signal.SIGKILL
        assert all(child.exitcode for child in children)
        latest = store.latest()
        assert latest and latest.step >= begun[0] + 3
    assert TrainResult.load(tmp_path / "run") is None
    assert exit_codes(start_processes(2, "rank_child.py", tmp_path, 0)) == [0, 0]
    shared = TrainResult.load(tmp_path / "run")
    assert shared and shared.losses == train(config, source, tmp_path / "alone").losses


def seeded(seed):
    return torch.Generator().manual_seed(seed)
