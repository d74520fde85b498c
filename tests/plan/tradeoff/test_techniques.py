from dataclasses import replace

import pytest

from steelyard.errors import ConfigError
from steelyard.plan.tradeoff.configuration import (
    BASELINE,
    Configuration,
    positioned,
    standard_configurations,
)
from steelyard.plan.tradeoff.techniques import refuse_pairs, technique, techniques


def test_names_of_the_file_are_known_and_goals_are_one_of_six_types():
    known = techniques()
    assert len(known) >= 25
    for item in known.values():
        assert {*item.composes_with, *item.incompatible} <= set(known), item.name
        assert not set(item.composes_with) & set(item.incompatible), item.name
        assert item.goals in ("C", "A", "P", "CA", "CP", "AP"), item.name
        assert item.layer in ("model", "system", "agent") and item.source and item.price
        # What composes is not excluded by the other side either.
        for other in item.composes_with:
            assert item.name not in known[other].incompatible, (item.name, other)
    exact = {name for name, item in known.items() if item.exact}
    assert {"prefix-caching", "speculative-decoding", "paged-attention"} <= exact


def test_pairs_that_exclude_each_other_are_refused_with_the_reason_in_either_order():
    for pair in (
        ("attention-sinks", "prefix-caching"),
        ("prefix-caching", "attention-sinks"),
        ("kv-int8", "window-attention"),
    ):
        with pytest.raises(ConfigError, match="cannot be had with"):
            refuse_pairs(pair)
    with pytest.raises(ConfigError, match="what a request keeps is its own"):
        Configuration(name="x", cache="h2o", prefix_caching=True)
    refuse_pairs(("yarn", "kv-int8", "weights-int8"))
    with pytest.raises(ConfigError, match="unknown technique 'kv-int9'") as caught:
        technique("kv-int9")
    assert "kv-int8" in caught.value.hint


def test_configurations_name_their_techniques_and_refuse_halves():
    assert BASELINE.techniques == ()
    for item in standard_configurations():
        assert set(item.techniques) <= set(techniques())
    singles = [item for item in standard_configurations() if len(item.techniques) == 1]
    assert len(singles) >= 12
    with pytest.raises(ConfigError, match="positions"):
        replace(BASELINE, positions="yarn")
    with pytest.raises(ConfigError, match="prompt"):
        replace(BASELINE, prompt="selective")
    with pytest.raises(ConfigError, match="stretch"):
        replace(BASELINE, stretch=0.5)
    with pytest.raises(ConfigError, match="weights"):
        replace(BASELINE, weights="auto")


def test_positions_and_scores_are_those_of_the_configuration(tiny):
    import torch

    row = torch.arange(24)[None] % 250
    plain = tiny(row)
    assert torch.equal(positioned(tiny, BASELINE, 64)(row), plain)
    for kind in ("linear", "ntk", "yarn"):
        made = positioned(tiny, replace(BASELINE, positions=kind, stretch=4.0), 256)
        assert made.architecture.max_positions == 256
        assert not torch.allclose(made(row), plain)
        # Weights are shared, not copied.
        assert made.embedding.weight.data_ptr() == tiny.embedding.weight.data_ptr()
    # Interpolated positions are the trained ones at every fourth place.
    linear = positioned(tiny, replace(BASELINE, positions="linear", stretch=4.0), 256)
    assert torch.allclose(linear.rotary_cosines[::4], tiny.rotary_cosines)
    # Scores times s are queries and keys times its root.
    sharp = positioned(tiny, replace(BASELINE, score_scale=1.5), 64)
    shape = replace(tiny.architecture, attention_scale=1.5 * tiny.architecture.head_dim**-0.5)
    from steelyard.nn.transformer import Transformer

    other = Transformer(shape)
    other.load_state_dict(tiny.state_dict())
    assert torch.allclose(sharp(row), other.eval()(row), atol=1e-5)
    with pytest.raises(ConfigError, match="scaled already"):
        positioned(linear, replace(BASELINE, positions="yarn", stretch=2.0), 64)
