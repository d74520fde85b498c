"""Runs of encoder-decoders and of image classifiers, from recipes and through the command."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from steelyard import config as configs
from steelyard.catalog.architecture import Architecture
from steelyard.cli import train as cli
from steelyard.data.images import GeneratedImages, ImageBatches
from steelyard.data.tasks.cache import write_cache
from steelyard.data.tasks.recipe import load_recipe as load_tasks
from steelyard.errors import ConfigError
from steelyard.nn import encoder_decoder
from steelyard.train import TrainConfig
from steelyard.train.kinds import ImagesConfig, PairsConfig, ResNetShape, load_recipe
from steelyard.train.kinds.images import train_images
from steelyard.train.kinds.pairs import train_pairs
from steelyard.train.parallel_config import ParallelConfig

RECIPES = Path(__file__).parents[2] / "recipes"
PAIR = Architecture(
    name="pair", kind="encoder-decoder", hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=2,
    head_dim=16, intermediate_size=48, vocab_size=259, max_positions=64,
)  # fmt: skip
PAIRS = PairsConfig(
    architecture=PAIR, task="copy", heldout="heldout", source_length=20, target_length=14,
    heldout_rows=16, steps=6, batch_size=8, learning_rate=5e-3, checkpoint_every=3,
)  # fmt: skip
IMAGES = ImagesConfig(
    network=ResNetShape(width=0.5), images=GeneratedImages(size=8, examples=64, heldout=32),
    steps=6, batch_size=8, learning_rate=0.05, optimizer="sgd", checkpoint_every=3,
)  # fmt: skip


class KilledError(Exception):
    pass


def stop_at(step):
    """Make a callback that ends a run as a kill would."""

    def on_step(now):
        if now.step == step:
            raise KilledError

    return on_step


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "words.json"
    heldout = {"generate": "copy", "examples": 16, "seed": 1}
    both = {"copy": {"generate": "copy", "examples": 64}, "heldout": heldout}
    path.write_text(json.dumps({"tasks": both}))
    return path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("encoder-decoder", PairsConfig), ("resnet", ImagesConfig), ("gpt-100m", TrainConfig),
        ("train-tiny", TrainConfig), ("moe", TrainConfig),
    ],
)  # fmt: skip
def test_recipes_are_of_their_kind(name, kind):
    assert type(load_recipe(RECIPES / f"{name}.toml")) is kind


def test_pairs_learn_resume_with_the_same_bits_and_leave_a_model(tasks, tmp_path):
    recipe = load_tasks(tasks)
    whole = train_pairs(PAIRS, recipe, tmp_path / "whole")
    with pytest.raises(KilledError):
        train_pairs(PAIRS, recipe, tmp_path / "cut", on_step=stop_at(4))
    again = train_pairs(PAIRS, recipe, tmp_path / "cut")
    assert again.losses == whole.losses and again.eval_losses == whole.eval_losses
    assert whole.losses[-1] < whole.losses[0]
    model = encoder_decoder.load(tmp_path / "whole" / "model")
    assert model(torch.zeros(1, 3).long(), torch.zeros(1, 2).long()).shape == (1, 2, 259)


def test_packed_pairs_hold_more_examples_and_learn(tasks, tmp_path):
    recipe = load_tasks(tasks)
    for name in recipe.tasks:
        write_cache(recipe.task(name), tmp_path / "caches" / name, workers=1)
    packed = replace(
        PAIRS, cache=str(tmp_path / "caches"), source_length=64, target_length=48, batch_size=2
    )
    result = train_pairs(packed, recipe, tmp_path / "run")
    assert result.losses[-1] < result.losses[0]


def test_another_task_in_the_folder_of_a_run_is_refused(tasks, tmp_path):
    recipe = load_tasks(tasks)
    train_pairs(replace(PAIRS, steps=1, checkpoint_every=0), recipe, tmp_path)
    other = replace(recipe, tasks=recipe.tasks | {"copy": replace(recipe.tasks["copy"], seed=5)})
    with pytest.raises(ConfigError, match="holds another run"):
        train_pairs(replace(PAIRS, steps=1, checkpoint_every=0), other, tmp_path)


def test_a_vocabulary_that_does_not_fit_is_refused_before_a_file(tasks, tmp_path):
    small = replace(PAIRS, architecture=replace(PAIR, vocab_size=100))
    with pytest.raises(ConfigError, match="259 tokens, the architecture vocab_size = 100"):
        train_pairs(small, load_tasks(tasks), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("field", ["source_length", "target_length", "heldout_rows"])
def test_wrong_lengths_are_named(field):
    with pytest.raises(ConfigError, match=field):
        replace(PAIRS, **{field: 0})


@pytest.mark.parametrize("config", [PAIRS, IMAGES], ids=["pairs", "images"])
def test_a_partition_is_for_decoders(config):
    with pytest.raises(ConfigError, match="only decoders have"):
        replace(config, parallel=ParallelConfig(partition="P1A1"))


def test_images_are_learned_and_resume_with_the_same_bits(tmp_path):
    whole = train_images(IMAGES, tmp_path / "whole")
    with pytest.raises(KilledError):
        train_images(IMAGES, tmp_path / "cut", on_step=stop_at(4))
    again = train_images(IMAGES, tmp_path / "cut")
    assert again.losses == whole.losses and again.eval_losses == whole.eval_losses


def test_generated_images_differ_by_class_and_part_and_repeat():
    quiet = GeneratedImages(classes=3, noise=0.0, size=12, examples=60, heldout=20)
    images, classes = quiet.training
    assert images.shape == (60, 3, 12, 12) and set(classes.tolist()) == {0, 1, 2}
    # Without noise an image is its pattern, rolled and scaled: its spectrum tells the class.
    spectrum = np.abs(np.fft.fft(images, axis=-1)).reshape(60, -1)
    spectrum /= np.linalg.norm(spectrum, axis=1, keepdims=True)
    alike = spectrum @ spectrum.T > 1 - 1e-5
    assert (alike == (classes[:, None] == classes)).all()
    again = GeneratedImages(classes=3, noise=0.0, size=12, examples=60, heldout=20)
    assert (again.training[0] == images).all() and not np.isin(quiet.held[0][0], images).all()
    assert "training" not in configs.to_plain(quiet)


def test_an_epoch_of_images_has_each_once():
    images = GeneratedImages(size=5, examples=24, heldout=1)
    batches = ImageBatches(images, 8)
    seen = torch.cat([batches.batch(index)[0] for index in range(3)])
    assert len({part.numpy().tobytes() for part in seen}) == 24


def test_the_command_runs_both_kinds(tasks, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    quick = {"steps": 2, "checkpoint_every": 0}
    for name, config, data in (
        ("pairs", replace(PAIRS, **quick), tasks), ("images", replace(IMAGES, **quick), None),
    ):  # fmt: skip
        configs.dump(config, tmp_path / f"{name}.json")
        cli.run(tmp_path / f"{name}.json", data=data, out=tmp_path / name)
        assert "eval.loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "given", "words"),
    [
        (PAIRS, {}, "--data is missing"),
        (IMAGES, {"data": Path("text")}, "--data text was given"),
        (IMAGES, {"measure": ["update-sizes"]}, "--measure is for decoders only"),
    ],
)
def test_what_a_kind_does_not_take_is_said(config, given, words, tmp_path):
    configs.dump(config, tmp_path / "recipe.json")
    with pytest.raises(ConfigError, match=words):
        cli.run(tmp_path / "recipe.json", out=tmp_path / "run", **given)
