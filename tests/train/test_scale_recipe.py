from dataclasses import replace

import pytest
import torch
from torch import nn

from steelyard.errors import ConfigError, DataError, SteelyardWarning
from steelyard.train import EstimatorConfig
from steelyard.train.scale_recipe import check_normalisation, check_sampling, scale_recipe
from steelyard.train.schedules import for_config

BASE = EstimatorConfig(
    steps=3200,
    batch_size=32,
    learning_rate=0.1,
    optimizer="sgd",
    accumulation=2,
    cooldown_steps=640,
    checkpoint_at=(320, 3200),
)


def test_the_linear_rule_keeps_epochs_and_starts_at_the_old_rate():
    large = scale_recipe(BASE, 256, warmup_examples=5 * 2560)
    assert (large.steps, large.batch_size, large.accumulation) == (400, 256, 16)
    assert large.micro_batch_size == BASE.micro_batch_size == 16
    assert large.learning_rate == pytest.approx(0.8) and large.warmup_steps == 50
    assert (large.cooldown_steps, large.checkpoint_at) == (80, (40, 400))
    rates = 0.8 * for_config(large)
    assert rates[0] == pytest.approx(0.1 + 0.7 / 50) and rates[49] == pytest.approx(0.8)
    assert large.steps * large.batch_size == BASE.steps * BASE.batch_size
    assert scale_recipe(large, 32, rule="linear").learning_rate == pytest.approx(0.1)


def test_other_rules_and_optimizers():
    assert scale_recipe(BASE, 128, rule="none").learning_rate == 0.1
    assert scale_recipe(BASE, 128, rule="sqrt").learning_rate == pytest.approx(0.2)
    adam = replace(BASE, optimizer="adamw", warmup_steps=8)
    assert scale_recipe(adam, 128).learning_rate == pytest.approx(0.2)
    assert scale_recipe(adam, 128).warmup_steps == 2
    with pytest.warns(SteelyardWarning, match="linear rule is for sgd"):
        scale_recipe(adam, 128, rule="linear")


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="no multiple of a micro-batch of 16"):
        scale_recipe(BASE, 40)
    with pytest.raises(ConfigError, match="cooldown_steps"):
        scale_recipe(BASE, 256, warmup_examples=100_000)
    own = replace(BASE, steps=2, cooldown_steps=0, checkpoint_at=(), schedule=(1.0, 0.5))
    with pytest.raises(ConfigError, match="multipliers"):
        scale_recipe(own, 64)


class Rows:
    """One permutation per epoch of 96 rows, or one per half batch."""

    def __init__(self, one=True):
        self.one = one

    def batch(self, index):
        generator = torch.Generator().manual_seed(index // 3 if self.one else index)
        order = torch.randperm(96, generator=generator)
        ids = order[32 * (index % 3) :][:32] if self.one else order[:32]
        return {"ids": ids, "x": ids[:, None].float() / 96}


def test_a_wrong_normalisation_is_found():
    module = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))

    def mean(module, batch):
        return (module(batch["x"]) - 1).square().mean()

    assert check_normalisation(module, mean, Rows(), BASE) < 1e-5
    assert module.training
    with pytest.raises(ConfigError, match="is not the mean over its examples"):
        check_normalisation(
            module, lambda module, batch: (module(batch["x"]) - 1).square().sum(), Rows(), BASE
        )
    with pytest.raises(ConfigError, match="nothing to compare"):
        check_normalisation(module, mean, Rows(), replace(BASE, accumulation=1))


def test_sampling_with_replacement_is_found():
    check_sampling(Rows(), lambda batch: batch["ids"], examples=96)
    with pytest.raises(DataError, match="came twice by batch 1"):
        check_sampling(Rows(one=False), lambda batch: batch["ids"], examples=96)
