"""A run keeps the order of the data it began with, and refuses a folder of another."""

import json
import shutil
from dataclasses import replace

import pytest

from steelyard.data.shards import TokenShards
from steelyard.errors import ConfigError
from steelyard.files import read_json
from steelyard.train.trainer import train


class StopHereError(Exception):
    """Ends a training half-way, as a kill would."""


def stop(progress):
    if progress.step == 3:
        raise StopHereError


@pytest.fixture
def earlier(data, tmp_path):
    """The same shards as a folder of the time when orders were stored, which named none."""
    folder = tmp_path / "earlier"
    shutil.copytree(data, folder)
    manifest = read_json(folder / "manifest.json")
    assert manifest.pop("order") == "keyed"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_run_goes_on_in_its_order_and_refuses_the_other(config, data, earlier, tmp_path):
    config = replace(
        config,
        architecture=replace(config.architecture, vocab_size=300),
        steps=4,
        checkpoint_every=2,
        eval_every=0,
        cooldown_steps=0,
    )
    shards = {"earlier": TokenShards(earlier), "newer": TokenShards(data)}
    for name, other in (("earlier", "newer"), ("newer", "earlier")):
        with pytest.raises(StopHereError):
            train(config, shards[name], tmp_path / name, on_step=stop)
        with pytest.raises(ConfigError, match=r"its data\.order is"):
            train(config, shards[other], tmp_path / name)
    whole = train(config, shards["earlier"], tmp_path / "whole").losses
    assert train(config, shards["earlier"], tmp_path / "earlier").losses == whole
    assert "order" not in read_json(tmp_path / "earlier" / "config.json")["data"]
    assert train(config, shards["newer"], tmp_path / "newer").losses != whole
