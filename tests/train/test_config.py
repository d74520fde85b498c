from dataclasses import replace
from pathlib import Path

import pytest

from steelyard import config as configs
from steelyard.errors import ConfigError, DataError
from steelyard.train import TrainConfig
from steelyard.train.source import check_source

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"clip": -0.5}, "clip is -0.5, but must be 0 or more"),
        ({"cooldown_steps": 99}, "what the warm-up leaves"),
        ({"accumulation": 3}, "a divisor of batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"sequence_length": 65}, "max_positions = 64"),
        ({"schedule": "cosine"}, "schedule is 'cosine', .* cooldown_steps must be 0"),
        ({"checkpoint_at": (4, 2)}, "ascending"),
        ({"betas": (0.9, 1.0)}, "betas"),
    ],
)
def test_impossible_configurations_are_refused(config, change, words):
    with pytest.raises(ConfigError, match=words):
        replace(config, **change)


def test_config_survives_json(config, tmp_path):
    configs.dump(config, tmp_path / "config.json")
    assert configs.load(tmp_path / "config.json", TrainConfig) == config


@pytest.mark.parametrize("name", ["train-tiny", "byte-lm"])
def test_recipes_name_every_field(name):
    import tomllib

    path = RECIPES / f"{name}.toml"
    assert configs.load(path, TrainConfig).architecture.name in ("tiny", "bytes")
    # TOML has no word for "as the schedule has it".
    named = set(tomllib.loads(path.read_text())) | {"final_fraction"}
    assert named == set(TrainConfig.__dataclass_fields__)


def test_vocabulary_and_size_of_the_data_are_checked(config, source):
    check_source(config, source)
    source.vocab_size = 65
    with pytest.raises(ConfigError, match="vocabulary of 65"):
        check_source(config, source)
    source.vocab_size, source.num_tokens = 64, 67
    with pytest.raises(DataError, match="67 training tokens"):
        check_source(config, source)
    source.num_tokens, source.heldout_tokens = 68, source.heldout_tokens[:16]
    with pytest.raises(DataError, match="16 held-out tokens"):
        check_source(config, source)
