"""Mixtures of experts in the trainer: balanced, resumed, and saved."""

from dataclasses import replace

import pytest
import torch

from steelyard.nn import checkpoint
from steelyard.nn.moe.losses import expert_loads
from steelyard.train.trainer import train


@pytest.fixture
def routed(config):
    arch = replace(
        config.architecture, num_experts=4, experts_per_token=1, moe_intermediate_size=32
    )
    return replace(config, architecture=arch, steps=16, eval_every=0, checkpoint_every=8)


@pytest.mark.parametrize("router", ["softmax", "sinkhorn", "reinforce"])
def test_experts_train_and_resume_with_the_same_bits(routed, source, tmp_path, router):
    routed = replace(routed, architecture=replace(routed.architecture, router=router))
    whole = train(routed, source, tmp_path / "whole")
    assert whole.losses[-1] < whole.losses[0]

    def stop(progress) -> None:
        if progress.step == 11:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(routed, source, tmp_path / "parts", on_step=stop)
    assert train(routed, source, tmp_path / "parts").losses == whole.losses


def test_balance_is_trained_on_and_not_reported(routed, source, tmp_path, monkeypatch):
    from steelyard.train import trainer

    first = train(replace(routed, steps=9), source, tmp_path / "balanced")
    monkeypatch.setattr(trainer, "auxiliary_loss", lambda module, losses: losses.sum() * 0)
    other = train(replace(routed, steps=9), source, tmp_path / "free")
    assert first.losses[0] == other.losses[0]
    assert first.losses[-1] != other.losses[-1]


def test_saved_experts_load(routed, source, tmp_path):
    result = train(routed, source, tmp_path / "run")
    model = checkpoint.load(result.model)
    model(torch.zeros(1, 4, dtype=torch.long))
    assert len(expert_loads(model)) == routed.architecture.num_layers
