"""Folders of GPTQ, AWQ and compressed-tensors, packed here one code at a time as published."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError, DataError
from steelyard.nn import checkpoint
from steelyard.nn.numerics.blocks import BlockCodes
from steelyard.nn.quantized.gptq import read_gptq
from steelyard.nn.quantized.words import WholeNumbers
from steelyard.nn.transformer import build

SMALL = Architecture(
    name="tiny",
    hidden_size=128,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=192,
    vocab_size=97,
    max_positions=64,
    tied_embeddings=False,
)
TOKENS = torch.arange(40).view(2, 20)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words_of_columns(codes, bits, order=None):
    """Codes [rows, columns] in int32 words [rows, columns * bits / 32]."""
    per = 32 // bits
    words = np.zeros((codes.shape[0], -(-codes.shape[1] // per)), dtype=np.uint32)
    for column in range(codes.shape[1]):
        place = column % per if order is None else order.index(column % per)
        words[:, column // per] |= codes[:, column].astype(np.uint32) << np.uint32(place * bits)
    return torch.from_numpy(words.view(np.int32))


def words_of_rows(codes, bits):
    return words_of_columns(codes.T, bits).T.contiguous()


def drawn(shape, group, bits, seed):
    """Codes and zero points below 2**bits, and float16 scales, all by outputs and inputs."""
    generator = np.random.default_rng(seed)
    rows, columns = shape
    codes = generator.integers(0, 2**bits, (rows, columns))
    zeros = generator.integers(1, 2**bits, (rows, columns // group))
    scales = generator.uniform(1e-3, 2e-2, (rows, columns // group)).astype(np.float16)
    return codes, zeros, scales


def weights_of(codes, zeros, scales, group_of):
    """The definition, in float64; every product of these is exact in float32 too."""
    wide = scales.astype(np.float64)[:, group_of]
    return torch.from_numpy((wide * (codes - zeros[:, group_of])).astype(np.float32))


def gptq(shape, seed, *, bits=4, group=64, shuffled=False, version=1):
    codes, zeros, scales = drawn(shape, group, bits, seed)
    group_of = np.arange(shape[1]) // group
    if shuffled:
        np.random.default_rng(seed).shuffle(group_of)
    stored = {
        "qweight": words_of_rows(codes.T, bits),
        "qzeros": words_of_columns((zeros - (version == 1)).T, bits),
        "scales": torch.from_numpy(scales.T.copy()),
        "g_idx": torch.from_numpy(group_of.astype(np.int32)),
    }
    return stored, weights_of(codes, zeros, scales, group_of)


def awq(shape, seed):
    codes, zeros, scales = drawn(shape, 64, 4, seed)
    stored = {
        "qweight": words_of_columns(codes.T, 4, AWQ_ORDER),
        "qzeros": words_of_columns(zeros.T, 4, AWQ_ORDER),
        "scales": torch.from_numpy(scales.T.copy()),
    }
    return stored, weights_of(codes, zeros, scales, np.arange(shape[1]) // 64)


def packed(shape, seed, *, bits=4, symmetric=True):
    codes, zeros, scales = drawn(shape, 64, bits, seed)
    group_of = np.arange(shape[1]) // 64
    stored = {
        "weight_packed": words_of_columns(codes, bits),
        "weight_scale": torch.from_numpy(scales),
        "weight_shape": torch.tensor(shape),
    }
    if symmetric:
        zeros = np.full_like(zeros, 2 ** (bits - 1))
    else:
        stored["weight_zero_point"] = words_of_rows(zeros, bits)
    return stored, weights_of(codes, zeros, scales, group_of)


def whole(shape, seed):
    codes, _, scales = drawn(shape, shape[1], 8, seed)
    stored = {
        "weight": torch.from_numpy((codes - 128).astype(np.int8)),
        "weight_scale": torch.from_numpy(scales),
    }
    zeros = np.full((shape[0], 1), 128)
    return stored, weights_of(codes, zeros, scales, np.zeros(shape[1], dtype=int))


COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": ["lm_head"]}
FORMS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 64}),
    "gptq by activations": (
        lambda shape, seed: gptq(shape, seed, shuffled=True),
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True},
    ),
    "gptq 8 bits": (
        lambda shape, seed: gptq(shape, seed, bits=8),
        {"quant_method": "gptq", "bits": 8, "group_size": 64},
    ),
    "gptq 2": (
        lambda shape, seed: gptq(shape, seed, version=2),
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
    ),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}),
    "packed": (packed, COMPRESSED | {"format": "pack-quantized"}),
    "packed with zeros": (
        lambda shape, seed: packed(shape, seed, symmetric=False),
        COMPRESSED | {"format": "pack-quantized"},
    ),
    "packed 8 bits": (
        lambda shape, seed: packed(shape, seed, bits=8, symmetric=False),
        COMPRESSED | {"format": "pack-quantized"},
    ),
    "whole": (whole, COMPRESSED | {"format": "int-quantized"}),
}


def quantize(folder, make, settings, change=lambda tensors: None):
    """Replace the projections of a saved model by packed ones; return what they stand for."""
    (folder / "steelyard.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    tensors, expected = load_file(folder / "model.safetensors"), {}
    for seed, name in enumerate([name for name in tensors if "_proj.weight" in name]):
        stored, expected[name] = make(tuple(tensors.pop(name).shape), seed)
        tensors |= {name.removesuffix("weight") + end: value for end, value in stored.items()}
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "m")
    (folder / "m").rename(folder / "model.safetensors")
    return expected


@pytest.mark.parametrize(("make", "settings"), FORMS.values(), ids=FORMS)
@torch.no_grad()
def test_a_packed_folder_equals_the_plain_one(make, settings, tmp_path):
    checkpoint.save(build(SMALL, seed=1), tmp_path / "packed")
    expected = quantize(tmp_path / "packed", make, settings)
    model = checkpoint.load(tmp_path / "packed")
    # The same weights in a plain folder.
    checkpoint.save(build(SMALL, seed=1), tmp_path / "plain")
    (tmp_path / "plain" / "steelyard.json").unlink()
    tensors = load_file(tmp_path / "plain" / "model.safetensors") | expected
    save_file(tensors, tmp_path / "plain" / "model.safetensors")
    plain = checkpoint.load(tmp_path / "plain")
    for name, value in plain.state_dict().items():
        if make is FORMS["gptq 8 bits"][0] or make is FORMS["packed 8 bits"][0]:
            # Codes less zero points need nine bits: scale and minimum are multiplied apart.
            torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(model.state_dict()[name], value), name
    torch.testing.assert_close(model(TOKENS), plain(TOKENS), rtol=1e-4, atol=1e-4)
    half = checkpoint.load(tmp_path / "packed", dtype=torch.bfloat16)
    assert torch.equal(half.layers[0].out.weight, model.layers[0].out.weight.bfloat16())


def test_codes_stay_small_and_groups_are_known():
    stored, expected = gptq((64, 256), 3)
    codes = read_gptq(stored.get, {"bits": 4}).grouped()
    assert codes.codes.dtype == torch.int8
    assert codes.group_size == 64
    assert codes.minimums is None
    assert torch.equal(codes.dequantize(), expected)


def test_groups_of_bytes_are_kept_where_their_zero_points_leave_bytes():
    codes, scales = torch.arange(256, dtype=torch.uint8).repeat(2, 1), torch.rand(2, 4).half()
    middle = WholeNumbers(codes, 8, scales, torch.full((2, 4), 128))
    found = middle.straight()
    assert isinstance(found, BlockCodes)
    assert torch.equal(found.dequantize(), middle.grouped().dequantize())
    assert WholeNumbers(codes, 8, scales, torch.zeros(2, 4, dtype=torch.int16)).straight() is None
    assert WholeNumbers(codes, 8, scales.float() * 1e-9).straight() is None


GPTQ = FORMS["gptq"][1]
Q = "model.layers.0.self_attn.q_proj."
BAD = {
    "method": ({"quant_method": "bitsandbytes"}, None, ConfigError, "'bitsandbytes' cannot"),
    "bits": (GPTQ | {"bits": 3}, None, ConfigError, "codes of 3 bits"),
    "format": (
        COMPRESSED | {"format": "float-quantized"},
        None,
        ConfigError,
        "format 'float-quantized'",
    ),
    "no zeros": (GPTQ, lambda t: t.pop(f"{Q}qzeros"), DataError, "q_proj: qweight, qzeros or"),
    "no scales": (GPTQ, lambda t: t.pop(f"{Q}scales"), DataError, "scales is missing"),
    "short scales": (
        GPTQ,
        lambda t: t.update({f"{Q}scales": t[f"{Q}scales"][:1]}),
        DataError,
        "q_proj: groups",
    ),
    "words": (
        GPTQ,
        lambda t: t.update({f"{Q}qweight": t[f"{Q}qweight"][:3]}),
        DataError,
        r"q_proj\.weight has shape \[128, 24\]",
    ),
    "groups": (
        GPTQ,
        lambda t: t.update({f"{Q}g_idx": t[f"{Q}g_idx"] + 2**30}),
        DataError,
        "q_proj: groups",
    ),
    "type": (
        GPTQ,
        lambda t: t.update({f"{Q}qweight": t[f"{Q}qweight"].to(torch.int16)}),
        DataError,
        "of type I16",
    ),
}


@pytest.mark.parametrize(("settings", "change", "error", "words"), BAD.values(), ids=BAD)
def test_bad_folders_are_refused_in_words(settings, change, error, words, tmp_path):
    checkpoint.save(build(SMALL), tmp_path)
    quantize(tmp_path, gptq, settings, change or (lambda tensors: None))
    with pytest.raises(error, match=words):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("end", "value", "words"),
    [
        ("weight_shape", torch.tensor([128, 2**40]), "has shape"),
        ("weight_shape", torch.tensor([128]), "quantized module|shape"),
        ("weight_packed", torch.zeros(128, 3, dtype=torch.int32), "128 inputs in 3 words"),
        ("weight_scale", torch.ones(128, 3), "scales"),
    ],
)
def test_bad_shapes_of_compressed_tensors_are_refused(end, value, words, tmp_path):
    checkpoint.save(build(SMALL), tmp_path)
    make, settings = FORMS["packed"]
    quantize(tmp_path, make, settings, lambda tensors: tensors.update({Q + end: value}))
    with pytest.raises(DataError, match=words):
        checkpoint.load(tmp_path)
