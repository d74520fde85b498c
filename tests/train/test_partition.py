"""Weights spread over processes: the rules, what keeps them from being met, and equal losses."""

import json
from dataclasses import replace

import pytest
import torch

from steelyard import config as configs
from steelyard.errors import ConfigError
from steelyard.nn.transformer import build
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.partition.axes import decoder_axes, unknown_traits
from steelyard.train.partition.boxes import Boxes
from steelyard.train.partition_rules import mesh_axes, preset_rules, violations
from steelyard.train.pieces import assemble
from steelyard.train.trainer import train


def test_presets_cut_each_tensor_over_each_mesh_axis_once():
    weight = ("heads", "embed")
    assert mesh_axes(weight, preset_rules("P1A1")) == ("model", "")
    assert mesh_axes(weight, preset_rules("P2A2")) == ("model", "data")
    assert mesh_axes(("embed",), preset_rules("P2A1")) == ("data",)
    assert mesh_axes(("batch", "length", "embed"), preset_rules("P1A2")) == ("data", "model", "")
    assert mesh_axes(("batch", "length"), preset_rules("P1A1")) == ("data", "")
    rules = (("mlp", ""), *preset_rules("P1A1"))
    assert mesh_axes(("mlp", "embed"), rules) == ("", "")


def test_all_that_keeps_rules_from_being_met_is_listed_at_once(arch):
    axes = decoder_axes(build(replace(arch, vocab_size=63, intermediate_size=65)))
    rules = (("width", "model"), ("mlp", "pipe"), ("embed", "model"), *preset_rules("P2A2"))
    found = violations(axes, {"batch": 3, "length": 15}, rules, {"data": 2, "model": 2})
    for part in (
        "no axis 'width'",
        "no axis 'pipe'",
        "embed cannot be cut over model",
        "vocab of embedding.weight is 63",
        "heads of layers.qkv.weight is 1, not a multiple of model = 2",
        "length of the activations (micro-batches, tokens) is 15",
        "batch of the activations (micro-batches, tokens) is 3",
    ):
        assert any(part in item for item in found), part
    assert not violations(axes, {"batch": 4}, preset_rules("P2A1"), {"data": 2, "model": 1})


def test_traits_without_known_axes_are_named(arch):
    assert not unknown_traits(arch)
    assert "4 experts" in unknown_traits(replace(arch, num_experts=4))[0]
    with pytest.raises(ConfigError, match="model"):
        ParallelConfig(model=2)


@pytest.mark.parametrize("preset", ["P1A1", "P2A1"])
def test_parts_make_up_the_whole(arch, preset):
    model = build(replace(arch, num_kv_heads=2))
    rules, mesh = preset_rules(preset), {"data": 2, "model": 2}
    pieces = []
    for data, place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for name, weight in model.named_parameters():
            axes = decoder_axes(model)
            kind = name.split(".", 2)[2] if name.startswith("layers") else name
            axes = axes[f"layers.{kind}" if name.startswith("layers") else name]
            boxes = Boxes.of(axes, rules, {"data": data, "model": place}, mesh)
            held = boxes.cut(boxes.cut(weight.detach(), "model"), "data")
            assert held.numel() * 4 == weight.numel() * boxes.copies
            pieces += boxes.pieces(name, held)
    whole = assemble(pieces)
    assert all(torch.equal(whole[name], weight) for name, weight in model.named_parameters())


@pytest.fixture
def spread(tmp_path, start_processes, exit_codes):
    """Train in so many processes by each of the names; return losses by name."""

    def run(config, names, count):
        configs.dump(config, tmp_path / "wanted.json")
        children = start_processes(count, "partition_child.py", tmp_path, ",".join(names))
        assert exit_codes(children, limit_s=800) == [0] * count
        return json.loads((tmp_path / "losses.json").read_text())

    return run


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "count, names",
    [
        (2, ["P1A1-2", "P1A2-2", "P2A1-1", "P2A2-2@25"]),
        (4, ["P1A1-2", "P1A2-2", "P2A1-2", "P2A2-2@25"]),
    ],
)
def test_all_presets_train_as_one_process(count, names, config, source, tmp_path, spread):
    shape = replace(config.architecture, num_kv_heads=2)
    config = replace(config, architecture=shape, steps=50, accumulation=2, checkpoint_at=(25,))
    alone = train(config, source, tmp_path / "alone")
    for name, (losses, eval_loss) in spread(config, names, count).items():
        worst = max(abs(a - b) for a, b in zip(losses, alone.losses, strict=True))
        assert worst <= 1e-6, (name, worst)
        assert eval_loss == pytest.approx(alone.eval_loss, abs=1e-6)
    # The way back: one process goes on from what several wrote, each its part.
    start = tmp_path / names[2] / "step-00000025.safetensors"
    again = train(config, source, tmp_path / "again", start_from=start)
    assert again.losses == pytest.approx(alone.losses, abs=1e-6)


@pytest.mark.slow
def test_traits_of_other_decoders_are_spread_too(config, source, tmp_path, spread):
    shape = replace(
        config.architecture,
        num_kv_heads=2,
        position="learned",
        norm="layernorm",
        mlp="gelu",
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
    )
    config = replace(config, architecture=shape, accumulation=2)
    alone = train(config, source, tmp_path / "alone")
    for name, (losses, _) in spread(config, ["P1A2-2", "P2A1-1"], 2).items():
        assert losses == pytest.approx(alone.losses, abs=1e-6), name
