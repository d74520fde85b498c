import dataclasses
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.huggingface_export import to_huggingface
from steelyard.errors import ConfigError, DataError
from steelyard.nn import checkpoint
from steelyard.nn.mapped import MappedFile, Weights
from steelyard.nn.names import slots
from steelyard.nn.rotary import RotaryScaling, rotary_tables
from steelyard.nn.transformer import Transformer, build

SMALL = Architecture(
    name="small",
    hidden_size=48,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=80,
    vocab_size=97,
    max_positions=64,
    tied_embeddings=False,
)
WIDE = dataclasses.replace(
    SMALL,
    hidden_size=1024,
    num_heads=16,
    num_kv_heads=16,
    head_dim=64,
    intermediate_size=2752,
    num_layers=4,
    vocab_size=8000,
)
SEVEN_B = dataclasses.replace(
    SMALL,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    intermediate_size=11008,
    num_layers=32,
    vocab_size=32000,
    max_positions=4096,
)


def write_quickly(arch, folder):
    """Write a bfloat16 folder whose weights repeat one block of noise; return its bytes."""
    names = {}
    for slot in slots(arch, "llama"):
        for part, rows in zip(slot.parts, slot.rows, strict=True):
            names[part] = [rows, slot.width] if slot.width else [rows]
    header, end = {}, 0
    for name in sorted(names):
        size = 2 * torch.Size(names[name]).numel()
        header[name] = {"dtype": "BF16", "shape": names[name], "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    block = (
        torch.randn(2**23, generator=torch.Generator().manual_seed(1))
        .mul(0.02)
        .bfloat16()
        .view(torch.uint8)
        .numpy()
        .tobytes()
    )
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        for first in range(0, end, len(block)):
            stream.write(block[: end - first])
    (folder / "config.json").write_text(json.dumps(to_huggingface(arch)))
    return end + 8 + len(raw)


def load_elsewhere(folder):
    """Load in a process of its own; return the peak of memory it added and the seconds."""
    script = Path(__file__).with_name("_load_memory.py")
    run = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, check=True
    )
    peak, seconds = run.stdout.split()
    return int(peak), float(seconds)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_holds_the_weights_once(tmp_path):
    size = write_quickly(WIDE, tmp_path)
    peak, _ = load_elsewhere(tmp_path)
    assert 0.9 * size < peak < 1.1 * size + 4e6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_7b_shaped_folder_fits_in_its_own_size(tmp_path):
    free = (
        int(
            next(
                line
                for line in Path("/proc/meminfo").read_text().splitlines()
                if line.startswith("MemAvailable")
            ).split()[1]
        )
        * 1024
    )
    if free < 15e9 or shutil.disk_usage(tmp_path).free < 16e9:
        pytest.skip("needs 15 GB of memory and 16 GB of disk")
    try:
        size = write_quickly(SEVEN_B, tmp_path)
        assert size > 13e9
        peak, seconds = load_elsewhere(tmp_path)
        print(f"peak {peak / size:.3f} of {size / 1e9:.2f} GB, loaded in {seconds:.1f} s")
        assert peak < 1.1 * size
    finally:
        (tmp_path / "model.safetensors").unlink()


def test_adjacent_parts_are_views_and_stay_apart_from_the_file(tmp_path):
    checkpoint.save(build(SMALL, seed=2), tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    model, weights = (
        checkpoint.load(tmp_path),
        Weights(tmp_path, checkpoint.WEIGHTS, checkpoint.INDEX),
    )
    assert (
        weights.view(["model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"])
        is not None
    )
    assert (
        weights.view(["model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"])
        is None
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert (tmp_path / "model.safetensors").read_bytes() == raw
    checkpoint.save(model, tmp_path)
    again = checkpoint.load(tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
def test_the_stored_type_is_kept_on_request(stored, tmp_path):
    model = build(SMALL, dtype=stored, seed=2)
    checkpoint.save(model, tmp_path)
    again = checkpoint.load(tmp_path, dtype=None)
    assert {parameter.dtype for parameter in again.parameters()} == {stored}
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    assert all(
        torch.equal(a.float(), b)
        for a, b in zip(model.parameters(), checkpoint.load(tmp_path).parameters(), strict=True)
    )


def change(folder, edit):
    """Rewrite the weights after `edit` changed them."""
    (folder / "steelyard.json").unlink(missing_ok=True)
    stored = load_file(folder / "model.safetensors")
    edit(stored)
    save_file(stored, folder / "model.safetensors")


def test_left_over_tensors_are_refused_and_known_buffers_are_not(tmp_path):
    checkpoint.save(build(SMALL), tmp_path)
    change(
        tmp_path,
        lambda stored: stored.update(
            {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
        ),
    )
    checkpoint.load(tmp_path)
    change(
        tmp_path,
        lambda stored: stored.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}),
    )
    with pytest.raises(
        DataError, match=r"does not have: model\.layers\.0\.self_attn\.q_proj\.bias"
    ):
        checkpoint.load(tmp_path)


def test_integer_weights_and_quantized_models_are_refused(tmp_path):
    checkpoint.save(build(SMALL), tmp_path)
    change(
        tmp_path,
        lambda stored: stored.update({"model.norm.weight": torch.ones(48, dtype=torch.int32)}),
    )
    with pytest.raises(DataError, match=r"model\.norm\.weight is of type I32"):
        checkpoint.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"bits": 4}}))
    with pytest.raises(ConfigError, match="quantized by None cannot be loaded"):
        checkpoint.load(tmp_path)


def test_pickles_are_refused_by_name(tmp_path):
    checkpoint.save(build(SMALL), tmp_path)
    (tmp_path / "steelyard.json").unlink()
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        checkpoint.load(tmp_path)


def shards(folder):
    checkpoint.save(build(SMALL), folder, max_shard_bytes=20_000)
    (folder / "steelyard.json").unlink()
    return json.loads((folder / checkpoint.INDEX).read_text())


def test_shards_cannot_lead_out_of_the_folder(tmp_path):
    folder, outside = tmp_path / "model", tmp_path / "outside.safetensors"
    index = shards(folder)
    first = sorted(set(index["weight_map"].values()))[0]
    shutil.copy(folder / first, outside)
    for name in ("../outside.safetensors", str(outside), "..", ""):
        places = {
            tensor: name if place == first else place
            for tensor, place in index["weight_map"].items()
        }
        (folder / checkpoint.INDEX).write_text(json.dumps({"weight_map": places}))
        with pytest.raises(DataError, match="not a plain file name"):
            checkpoint.load(folder)
    (folder / checkpoint.INDEX).write_text(json.dumps(index))
    (folder / first).unlink()
    (folder / first).symlink_to(outside)
    with pytest.raises(DataError, match="outside the folder"):
        checkpoint.load(folder)
    (folder / first).unlink()
    os.mkfifo(folder / first)
    with pytest.raises(DataError, match="not a regular file"):
        checkpoint.load(folder)


def test_links_into_a_hub_cache_are_followed(tmp_path):
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    blobs.mkdir()
    model = build(SMALL, seed=3)
    checkpoint.save(model, snapshot)
    (snapshot / "model.safetensors").rename(blobs / "1234")
    (snapshot / "model.safetensors").symlink_to("../../blobs/1234")
    torch.testing.assert_close(checkpoint.load(snapshot).state_dict(), model.state_dict())


def test_an_index_that_contradicts_its_shards_is_refused(tmp_path):
    index = shards(tmp_path)
    places = index["weight_map"]
    (tmp_path / checkpoint.INDEX).write_text(
        json.dumps({"weight_map": places | {"model.ghost.weight": sorted(places.values())[0]}})
    )
    with pytest.raises(DataError, match=r"places model\.ghost\.weight"):
        checkpoint.load(tmp_path)
    (tmp_path / checkpoint.INDEX).write_text("{}")
    with pytest.raises(DataError, match="no weight_map"):
        checkpoint.load(tmp_path)
    names = sorted(set(places.values()))
    shutil.copy(tmp_path / names[0], tmp_path / "twin.safetensors")
    (tmp_path / checkpoint.INDEX).write_text(
        json.dumps({"weight_map": places | {"x": "twin.safetensors"}})
    )
    with pytest.raises(DataError, match="again, which another shard has"):
        checkpoint.load(tmp_path)


def raw_file(path, header, data=b""):
    """Write a file with any header."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def record(shape=(2,), begin=0, end=8, dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{", b"", "Expecting"),
        (b"[]", b"", "not an object"),
        (b"\xff\xfe", b"", "readable"),
        (b'{"a": 1, "a": 2}', b"", "twice"),
        (b"[" * 100_000, b"", "readable"),
        ({"a": 1}, b"", "unknown dtype None"),
        ({"a": record(dtype="F4")}, bytes(8), "unknown dtype 'F4'"),
        ({"a": record(shape=(-2,))}, bytes(8), "shape"),
        ({"a": record(shape=(True, 2))}, bytes(8), "shape"),
        ({"a": record(begin=8, end=0)}, bytes(8), "needs 8 bytes"),
        ({"a": record(shape=(2**40, 2**40))}, bytes(8), "needs"),
        ({"a": record(end=12)}, bytes(12), "needs 8 bytes"),
        ({"a": record(), "b": record()}, bytes(8), "ends at"),
        ({"a": record(), "b": record(begin=4, end=12)}, bytes(12), "ends at"),
        ({"a": record(), "b": record(begin=12, end=20)}, bytes(20), "ends at"),
        ({"a": record()}, bytes(4), "truncated"),
        ({"a": record()}, bytes(12), "tail"),
    ],
)
def test_malformed_headers_are_refused(header, data, words, tmp_path):
    with pytest.raises(DataError, match=words):
        MappedFile(raw_file(tmp_path / "a.safetensors", header, data))


@pytest.mark.parametrize(
    "raw", [b"", b"\x01\x02", struct.pack("<Q", 2**63), struct.pack("<Q", 10) + b"{}"]
)
def test_headers_that_do_not_fit_are_refused(raw, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(raw)
    with pytest.raises(DataError, match="header of"):
        MappedFile(tmp_path / "a.safetensors")


@settings(max_examples=40, deadline=None)
@given(position=st.integers(0, 400), byte=st.integers(0, 255))
def test_any_changed_byte_of_a_header_loads_or_is_refused(position, byte, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "flip.safetensors"
    save_file({"a": torch.ones(3, 5), "b": torch.ones(7, dtype=torch.bfloat16)}, path)
    raw = bytearray(path.read_bytes())
    raw[position % len(raw)] = byte
    path.write_bytes(raw)
    try:
        opened = MappedFile(path)
    except DataError:
        return
    assert all(entry.stop <= len(raw) for entry in opened.entries.values())


def test_misaligned_tensors_are_copied(tmp_path):
    path = raw_file(
        tmp_path / "a.safetensors",
        {"x": record((3,), 0, 3, "U8"), "a": record((2,), 3, 11)},
        bytes(3) + struct.pack("<2f", 1.5, -2),
    )
    opened = MappedFile(path)
    assert opened.view(["a"]) is None or (8 + len(json.dumps({})) + 3) % 4 == 0
    assert opened.read("a").tolist() == [1.5, -2.0]


def test_llama3_scaling_stretches_long_wavelengths_only(tmp_path):
    scaling = RotaryScaling(factor=8.0, low=1.0, high=4.0, original_positions=8192)
    frequencies = 500000.0 ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    slow = [_llama3(float(value), 8.0, 1.0, 4.0, 8192) for value in frequencies]
    torch.testing.assert_close(scaling.apply(frequencies), torch.tensor(slow, dtype=torch.float64))
    cosines, _ = rotary_tables(4, 128, 500000.0, RotaryScaling(factor=2.0))
    torch.testing.assert_close(cosines[2], rotary_tables(4, 128, 500000.0)[0][1])
    model = Transformer(SMALL, scaling)
    model.load_state_dict(build(SMALL, seed=1).state_dict())
    checkpoint.save(model, tmp_path)
    again = checkpoint.load(tmp_path)
    assert again.scaling == scaling
    tokens = torch.arange(30)[None]
    assert torch.equal(again(tokens), model(tokens))


def _llama3(frequency, factor, low, high, original):
    """One angle, by cases."""
    wavelength = 2 * torch.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency
