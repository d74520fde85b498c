import dataclasses
import json

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tests.family_models import golden, write_folder

from steelyard.errors import CapacityError, CatalogError, ConfigError, DataError, SteelyardWarning
from steelyard.nn import checkpoint
from steelyard.nn.transformer import build

GEMMA2 = {"model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh"}
TOKENS = torch.arange(60).view(3, 20)


@pytest.mark.parametrize("max_shard_bytes", [10**9, 20_000])
@torch.no_grad()
def test_a_saved_model_loads_bit_equal(arch, max_shard_bytes, tmp_path):
    model = build(arch, seed=4)
    checkpoint.save(model, tmp_path, max_shard_bytes=max_shard_bytes)
    again = checkpoint.load(tmp_path)
    assert again.architecture.name == "tiny"
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (max_shard_bytes < 10**9)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True)
    )
    assert torch.equal(model(TOKENS), again(TOKENS))


def test_a_save_over_a_sharded_one_leaves_no_old_file(llama, tmp_path):
    checkpoint.save(build(llama), tmp_path, max_shard_bytes=20_000)
    checkpoint.save(build(llama, seed=9), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json",
        "model.safetensors",
        "steelyard.json",
    ]
    assert torch.equal(
        checkpoint.load(tmp_path).embedding.weight, build(llama, seed=9).embedding.weight
    )


def test_gpt2_without_its_prefix_loads(gpt2, tmp_path):
    checkpoint.save(build(gpt2, seed=4), tmp_path)
    (tmp_path / "steelyard.json").unlink()
    stored = {
        name.removeprefix("transformer."): value
        for name, value in load_file(tmp_path / "model.safetensors").items()
    }
    save_file(stored, tmp_path / "model.safetensors")
    assert torch.equal(
        checkpoint.load(tmp_path).embedding.weight, build(gpt2, seed=4).embedding.weight
    )


def rewrite(folder, change):
    (folder / "steelyard.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))


def test_a_flipped_bit_is_found(llama, tmp_path):
    checkpoint.save(build(llama), tmp_path)
    raw = bytearray((tmp_path / "model.safetensors").read_bytes())
    raw[-5] ^= 1
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(DataError, match=r"model.safetensors is corrupted"):
        checkpoint.load(tmp_path)


def test_a_truncated_file_without_hashes_is_found(llama, tmp_path):
    checkpoint.save(build(llama), tmp_path)
    (tmp_path / "steelyard.json").unlink()
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="not a readable safetensors"):
        checkpoint.load(tmp_path)


def test_missing_and_misshapen_tensors_are_named(llama, tmp_path):
    checkpoint.save(build(llama), tmp_path)
    rewrite(tmp_path, {"num_hidden_layers": 4})
    with pytest.raises(
        DataError, match=r"missing tensors: model\.layers\.3\.input_layernorm\.weight.*more"
    ):
        checkpoint.load(tmp_path)
    checkpoint.save(build(llama), tmp_path)
    rewrite(tmp_path, {"vocab_size": 99})
    with pytest.raises(
        DataError, match=r"model\.embed_tokens\.weight has shape \[97, 48\].*\[99, 48\]"
    ):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "bloom"}, "bloom"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}, "rotary scaling 'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks a usable 'low_freq"),
    ],
)
def test_what_would_compute_something_else_is_refused(llama, change, words, tmp_path):
    checkpoint.save(build(llama), tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(ConfigError, match=words):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_local_experts": 4}, "num_local_experts = 4"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"sliding_window": 16}, "sliding_window = 16"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"model_type": "qwen2", "attention_bias": True}, "attention_bias = True"),
        ({"model_type": "olmo2", "mlp_bias": True}, "mlp_bias = True"),
        ({"model_type": "gemma", "hidden_act": "relu"}, "hidden_act = 'relu'"),
        (GEMMA2 | {"use_bidirectional_attention": True}, "use_bidirectional"),
        (GEMMA2 | {"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
        (
            {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 3},
            "sliding_window is not set",
        ),
        (
            {"model_type": "smollm3", "no_rope_layers": [1, 0, 0]},
            r"no_rope_layers .*\[1, 2\] apart",
        ),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "not a list of 3 layers"),
        ({"rope_scaling": "yarn"}, "not a table"),
    ],
)
def test_traits_that_a_family_lacks_are_named(llama, change, words, tmp_path):
    checkpoint.save(build(llama), tmp_path)
    rewrite(tmp_path, {"hidden_act": "silu"} | change)
    with pytest.raises(CatalogError, match=words) as caught:
        checkpoint.load(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


def long_rope(**changes):
    """The fields of a Phi-3 for long contexts whose heads have 8 columns."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    return {
        "model_type": "phi3",
        "original_max_position_embeddings": 16,
        "rope_scaling": {"type": "longrope"} | factors | changes,
    }


def test_long_rope_takes_the_factors_of_the_length_that_is_asked_for(llama, tmp_path):
    checkpoint.save(build(dataclasses.replace(llama, rotary_dim=6)), tmp_path)
    rewrite(tmp_path, long_rope(short_factor=[1.0] * 3, long_factor=[2.0] * 3))
    with pytest.warns(SteelyardWarning, match="max_positions is 16, not 64"):
        short = checkpoint.load(tmp_path)
    assert short.architecture.max_positions == 16
    assert checkpoint.load(tmp_path, max_positions=16).architecture.max_positions == 16
    long = checkpoint.load(tmp_path, max_positions=17)
    assert long.architecture.max_positions == 64
    angles = [torch.atan2(model.rotary_sines, model.rotary_cosines)[1] for model in (short, long)]
    torch.testing.assert_close(angles[0], 2 * angles[1])
    # sqrt(1 + ln(64 / 16) / ln 16), LongRoPE's factor of the scores' two sides
    assert short.scaling.magnitude == pytest.approx(1.5**0.5)


@pytest.mark.parametrize("missing", ["short_factor", "long_factor"])
def test_long_rope_without_a_factor_for_each_wavelength_is_refused(llama, missing, tmp_path):
    checkpoint.save(build(dataclasses.replace(llama, rotary_dim=6)), tmp_path)
    rewrite(tmp_path, long_rope(**{missing: [1.0]}))
    with pytest.raises(ConfigError, match=r"longrope.*3 numbers each"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: "language_model." + name,
        lambda name: name.replace("model.", "model.language_model."),
    ],
    ids=["released", "saved by transformers 5"],
)
def test_the_text_half_of_a_multimodal_gemma_3(rename, tmp_path):
    entry = golden()["families"]["gemma3_text"]
    write_folder(entry, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    text = {rename(name): tensor for name, tensor in tensors.items()}
    pictures = {"vision_tower.vision_model.post_layernorm.bias": torch.zeros(4)}
    save_file(text | pictures, tmp_path / "model.safetensors")
    config = {"model_type": "gemma3", "text_config": entry["config"], "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = checkpoint.load(tmp_path)(torch.tensor([golden()["prompt"]]))[0, golden()["positions"]]
    torch.testing.assert_close(found, torch.tensor(entry["logits"]), rtol=0, atol=2e-5)


def test_wrong_folders_are_refused(llama, tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        checkpoint.load(tmp_path / "none")
    with pytest.raises(DataError, match=r"no such file.*config\.json"):
        checkpoint.load(tmp_path)
    checkpoint.save(build(llama), tmp_path)
    (tmp_path / "steelyard.json").unlink()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model.safetensors is missing"):
        checkpoint.load(tmp_path)


def test_a_full_disk_is_a_capacity_error(llama, tmp_path, monkeypatch):
    def full(*_arguments):
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr("steelyard.nn.mapped.save_file", full)
    with pytest.raises(CapacityError, match="disk full"):
        checkpoint.save(build(llama), tmp_path)
    assert list(tmp_path.iterdir()) == []
