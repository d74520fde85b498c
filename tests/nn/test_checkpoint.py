import json

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from steelyard.errors import CapacityError, ConfigError, DataError, SteelyardWarning
from steelyard.nn import checkpoint
from steelyard.nn.transformer import build

torch.set_num_threads(2)

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
        ({"model_type": "mixtral"}, "mixtral"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rotary scaling 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks a usable 'low_freq"),
    ],
)
def test_what_would_compute_something_else_is_refused(llama, change, words, tmp_path):
    checkpoint.save(build(llama), tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(ConfigError, match=words):
        checkpoint.load(tmp_path)


def test_a_sliding_window_limits_the_positions(llama, tmp_path):
    checkpoint.save(build(llama), tmp_path)
    rewrite(tmp_path, {"model_type": "mistral", "sliding_window": 16})
    with pytest.warns(SteelyardWarning, match="max_positions is 16"):
        assert checkpoint.load(tmp_path).architecture.max_positions == 16


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
