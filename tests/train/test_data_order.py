"""A run keeps the order of the data it began with, and refuses a folder of another."""

import json
import shutil
from dataclasses import replace

import pytest

from steelyard.data.shards import TokenShards
from steelyard.errors import ConfigError
from steelyard.files import read_json
from steelyard.train.source import check_source
from steelyard.train.trainer import TokenBatches, train


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


def test_unique_tokens_are_seen_once_a_pass_and_lie_within_larger_sets(config, source):
    few = replace(config, unique_tokens=12 * 16, batch_size=4, sequence_length=16)

    def windows(config, steps):
        batches = TokenBatches(config, source)
        rows = [batches.batch(step) for step in range(steps)]
        return [tuple(row.tolist()) for batch in rows for row in batch]

    first = windows(few, 6)
    assert len({*first[:12]}) == 12 and {*first[:12]} == {*first[12:]}
    assert first[:12] != first[12:]
    assert {*first} == {*windows(replace(few, seed=5), 3)}
    assert {*first} < {*windows(replace(few, unique_tokens=24 * 16), 6)}
    with pytest.raises(ConfigError, match="unique_tokens is 21000"):
        check_source(replace(few, unique_tokens=21000), source)
