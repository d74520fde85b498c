import json
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
        ({"measure": ("noise-scale",)}, "wants accumulation of 2 or more"),
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
    # TOML has no word for "as the schedule has it", and an empty table would turn it on.
    named = set(tomllib.loads(path.read_text())) | {"final_fraction", "adaptive_batch"}
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


def test_everything_that_is_wrong_with_a_recipe_is_said_at_once(config, tmp_path):
    plain = configs.to_plain(config)
    del plain["batch_size"]
    plain |= {"learning_rate": 20.0, "clip": -1.0, "stepz": 3, "threads": "two", "eval_tokens": 0}
    plain["warmup_steps"] = 99
    plain["averages"] = [{"kind": "ema", "decay": 2.0}]
    plain["architecture"] |= {"num_kv_heads": 3, "hidden_size": 0}
    (tmp_path / "bad.json").write_text(json.dumps(plain))
    with pytest.raises(ConfigError, match="things are wrong") as caught:
        configs.load(tmp_path / "bad.json", TrainConfig)
    said = str(caught.value)
    for words in (
        "unknown field $.stepz",
        "missing required field `batch_size`",
        "Expected `int`, got `str` - at `$.threads`",
        "learning_rate is 20.0",
        "clip is -1.0",
        "eval_tokens is 0",
        "warmup_steps is 99, but must be at least 0 and at most steps = 12",
        "averages[0].decay is 2.0",
        "architecture: field 'hidden_size' is 0",
    ):
        assert words in said
    # What cannot be judged without the missing value is left out.
    assert "accumulation" not in said and "sequence_length" not in said
    assert len(caught.value.parts) == said.count("\n")


def test_everything_that_is_wrong_with_the_data_is_said_at_once(config, source, tmp_path):
    from steelyard.train.trainer import train

    source.vocab_size, source.num_tokens = 65, 10
    with pytest.raises(ConfigError, match=r"(?s)vocabulary of 65.*10 training tokens.*'nowhere'"):
        train(replace(config, device="nowhere"), source, tmp_path / "run")
    assert not (tmp_path / "run").exists()
