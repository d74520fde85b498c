"""Models of GGUF files equal those of Hugging Face folders with the same weights."""

import dataclasses
import subprocess
import sys
import time

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nn.gguf_files import FAMILIES, LLAMA, UNTIED, close, encode, new_writer, write_model

from steelyard.errors import CatalogError, ConfigError, DataError, SteelyardWarning
from steelyard.nn import checkpoint
from steelyard.nn.gguf.blocks import unpack
from steelyard.nn.gguf.kinds import KINDS
from steelyard.nn.gguf.scaling import recovered
from steelyard.nn.gguf.tensor import read_rows
from steelyard.nn.rotary import RotaryScaling
from steelyard.nn.transformer import build

TOKENS = torch.arange(60).view(3, 20)
TYPES = [Kind(number) for number in KINDS]
BLOCKS = [kind for kind in TYPES if KINDS[kind].block_size > 1]
WRITTEN = [kind for kind in BLOCKS if not kind.name.endswith("_K")]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@torch.no_grad()
def test_logits_equal_those_of_a_folder_with_the_same_weights(kind, tmp_path):
    model = build(UNTIED, seed=4)
    write_model(tmp_path / "m.gguf", "llama", model, kind)
    checkpoint.save(model, tmp_path / "hf")
    ours, folder = checkpoint.load(tmp_path / "m.gguf"), checkpoint.load(tmp_path / "hf")
    assert torch.equal(ours(TOKENS), folder(TOKENS))
    assert ours.architecture == dataclasses.replace(UNTIED, name="m", norm_eps=ours_eps(ours))


def ours_eps(model):
    """The format keeps it in float32."""
    assert model.architecture.norm_eps == pytest.approx(1e-5, rel=1e-6)
    return model.architecture.norm_eps


@pytest.mark.parametrize(("family", "arch"), FAMILIES.values(), ids=FAMILIES)
@torch.no_grad()
def test_every_family_loads_equal(family, arch, tmp_path):
    model = build(arch, seed=2)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases start at 0 and gains at 1, which would hide a mix-up
            parameter.add_(0.1 * torch.randn(parameter.shape))
    write_model(tmp_path / "m.gguf", family, model, Kind.Q8_0)
    again = checkpoint.load(tmp_path / "m.gguf")
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    torch.testing.assert_close(again(TOKENS), model(TOKENS))
    found, wanted = dataclasses.asdict(again.architecture), dataclasses.asdict(arch)
    for name in wanted.keys() - {"name"}:
        same = wanted[name]
        if isinstance(same, float):  # files have float32
            same = pytest.approx(same, rel=1e-6)
        assert found[name] == same, name
    checkpoint.save(again, tmp_path / "hf")
    assert torch.equal(checkpoint.load(tmp_path / "hf")(TOKENS), again(TOKENS))


@torch.no_grad()
def test_types_are_converted_and_the_main_one_is_kept(tmp_path):
    model = build(LLAMA, seed=4)
    for kind, kept in ((Kind.BF16, torch.bfloat16), (Kind.F16, torch.float16)):
        write_model(tmp_path / "m.gguf", "llama", model, kind)
        again = checkpoint.load(tmp_path / "m.gguf", dtype=None)
        assert again.embedding.weight.dtype == again.norm.weight.dtype == kept
    write_model(tmp_path / "m.gguf", "llama", model, Kind.Q4_0)
    again = checkpoint.load(tmp_path / "m.gguf", dtype=None)
    assert torch.equal(again.layers[1].down.weight, model.layers[1].down.weight.bfloat16())


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), blocks=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_any_block_is_read_as_the_package_reads_it(kind, seed, rows, blocks):
    generator = np.random.default_rng(seed)
    size = blocks * KINDS[kind].block_bytes
    raw = generator.integers(0, 256, (rows, size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind)
    found = read_rows(torch.from_numpy(raw), KINDS[kind]).numpy()
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.name)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(1e-3, 1e3))
@settings(max_examples=20, deadline=None)
def test_a_round_trip_is_within_one_step_of_the_code(kind, seed, scale):
    weights = np.random.default_rng(seed).normal(0, scale, (3, 96)).astype(np.float32)
    packed = unpack(torch.from_numpy(encode(weights, kind)), KINDS[kind])
    assert packed.group_size == 32
    assert packed.codes.dtype == torch.int8
    steps = packed.scales.abs().repeat_interleave(32, dim=1).numpy()
    # Symmetric types clip the end of the range that has one code less, by at most one step; scales
    # are rounded to float16.
    error = np.abs(packed.dequantize().numpy() - weights)
    assert (error <= 1.02 * steps + 1e-3 * np.abs(weights).max()).all()


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize(("factor", "low", "high"), [(8.0, 1.0, 4.0), (32.0, 1.0, 4.0)])
def test_the_scaling_of_llama_3_is_recovered_from_its_divisors(theta, factor, low, high):
    wanted = RotaryScaling(factor=factor, low=low, high=high, original_positions=8192)
    frequencies = theta ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    divisors = (frequencies / wanted.apply(frequencies)).float().numpy()
    assert recovered(divisors, theta) == wanted
    assert recovered(divisors[::-1].copy(), theta) is None
    assert recovered(divisors * np.nan, theta) is None


@torch.no_grad()
def test_rotary_scaling_is_read(tmp_path):
    def scaled(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    model = build(LLAMA)
    write_model(tmp_path / "m.gguf", "llama", model, extra=scaled)
    assert checkpoint.load(tmp_path / "m.gguf").scaling == RotaryScaling(factor=4.0)
    wanted = RotaryScaling(factor=8.0, low=1.0, high=4.0, original_positions=8192)
    frequencies = 10000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    divisors = (frequencies / wanted.apply(frequencies)).float().numpy()
    write_model(
        tmp_path / "m.gguf",
        "llama",
        model,
        extra=lambda writer: writer.add_tensor("rope_freqs.weight", divisors),
    )
    again = checkpoint.load(tmp_path / "m.gguf")
    assert again.scaling == wanted
    checkpoint.save(again, tmp_path / "hf")
    assert torch.equal(checkpoint.load(tmp_path / "hf")(TOKENS), again(TOKENS))


CHANGES = {
    "experts": (lambda w: w.add_expert_count(8), ConfigError, "mixture of experts"),
    "window": (lambda w: w.add_key_length(32), ConfigError, "part of each head"),
    "yarn": (
        lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
        ConfigError,
        "'yarn' is not supported",
    ),
    "heads": (lambda w: w.add_head_count(0), CatalogError, "num_heads"),
    "more heads": (lambda w: w.add_head_count(2**31), DataError, "has shape"),
    "layers": (lambda w: w.add_block_count(2**31), DataError, "2147483648 layers"),
    "a layer": (lambda w: w.add_block_count(3), DataError, r"missing tensors: blk\.2\.attn"),
    "positions": (lambda w: w.add_context_length(2**31), DataError, "context_length"),
    "width": (lambda w: w.add_embedding_length(2**31), DataError, "has shape"),
    "layer by layer": (lambda w: w.add_head_count_kv([2, 1]), ConfigError, "layer to layer"),
    "a text": (lambda w: w.add_string("llama.block_count", "2"), DataError, "not of type int"),
    "parts": (lambda w: w.add_uint16("split.count", 3), ConfigError, "one of 3 parts"),
    "epsilon": (lambda w: w.add_layer_norm_rms_eps(float("nan")), CatalogError, "norm_eps"),
    "left over": (
        lambda w: w.add_tensor("blk.0.odd.weight", np.ones(3, np.float32)),
        DataError,
        r"does not have: blk\.0\.odd",
    ),
}


@pytest.mark.parametrize(("change", "error", "words"), CHANGES.values(), ids=CHANGES)
@torch.no_grad()
def test_what_would_compute_something_else_is_refused(change, error, words, tmp_path):
    # The package takes the last value of a key that is given twice.
    write_model(tmp_path / "m.gguf", "llama", build(LLAMA), extra=change)
    with pytest.raises(error, match=words):
        checkpoint.load(tmp_path / "m.gguf")


NAN = float("nan")
FIELDS = {
    "caps": (
        "gemma2",
        lambda w: w.add_attn_logit_softcapping(NAN),
        CatalogError,
        "attention_softcap",
    ),
    "windows": (
        "gemma3",
        lambda w: w.add_array("gemma3.attention.sliding_window_pattern", [False, True, True]),
        ConfigError,
        "sliding_window_pattern follows no rule",
    ),
    "no positions": (
        "granite",
        lambda w: w.add_rope_scaling_finetuned(False),
        ConfigError,
        "positions that are not turned",
    ),
    "a factor": ("granite", lambda w: w.add_logit_scale(NAN), CatalogError, "logit_divisor"),
    "OLMo 3": ("olmo2", lambda w: w.add_sliding_window(9), ConfigError, "windows in an olmo2"),
    "odd heads": ("phi3", lambda w: w.add_rope_dimension_count(33), CatalogError, "rotary_dim"),
    "half a scaling": (
        "phi3",
        lambda w: w.add_tensor("rope_factors_long.weight", np.ones(24, np.float32)),
        ConfigError,
        "rope_factors_long",
    ),
}


@pytest.mark.parametrize(("family", "change", "error", "words"), FIELDS.values(), ids=FIELDS)
@torch.no_grad()
def test_fields_of_families_are_checked(family, change, error, words, tmp_path):
    write_model(tmp_path / "m.gguf", family, build(FAMILIES[family][1]), extra=change)
    with pytest.raises(error, match=words):
        checkpoint.load(tmp_path / "m.gguf")


@torch.no_grad()
def test_windows_that_are_listed_by_layer_are_read(tmp_path):
    key, arch = "gemma3.attention.sliding_window_pattern", FAMILIES["gemma3"][1]
    for listed, every in (([True, True, False], 3), ([True] * 3, 0)):
        write_model(
            tmp_path / "m.gguf",
            "gemma3",
            build(arch),
            extra=lambda writer, listed=listed: writer.add_array(key, listed),
        )
        assert checkpoint.load(tmp_path / "m.gguf").architecture.full_attention_every == every


@torch.no_grad()
def test_long_factors_are_read_for_long_sequences(tmp_path):
    arch = FAMILIES["phi3"][1]
    short, long = np.linspace(1, 2, 24, dtype=np.float32), np.linspace(2, 9, 24, dtype=np.float32)

    def scaled(writer):
        writer.add_rope_scaling_orig_ctx_len(32)
        writer.add_rope_scaling_attn_factors(1.25)
        writer.add_tensor("rope_factors_long.weight", long)
        writer.add_tensor("rope_factors_short.weight", short)

    write_model(tmp_path / "m.gguf", "phi3", build(arch), extra=scaled)
    with pytest.warns(SteelyardWarning, match="max_positions is 32, not 64"):
        assert checkpoint.load(tmp_path / "m.gguf").architecture.max_positions == 32
    again = checkpoint.load(tmp_path / "m.gguf", max_positions=64)
    assert again.architecture.max_positions == 64
    assert again.scaling == RotaryScaling(
        factor=2.0,
        original_positions=32,
        stretches=tuple(short.tolist()),
        long_stretches=tuple(long.tolist()),
        magnitude=1.25,
    )
    checkpoint.save(again, tmp_path / "hf")
    folder = checkpoint.load(tmp_path / "hf", max_positions=64)
    assert torch.equal(folder(TOKENS), again(TOKENS))


def test_other_families_and_other_files_are_refused_in_words(tmp_path):
    writer = new_writer(tmp_path / "m.gguf", "mamba", LLAMA)
    close(writer)
    with pytest.raises(ConfigError, match="architecture 'mamba'") as caught:
        checkpoint.load(tmp_path / "m.gguf")
    assert "llama, qwen2, qwen3, gemma" in caught.value.hint
    close(new_writer(tmp_path / "m.gguf", "llama", LLAMA))
    with pytest.raises(DataError, match=r"token_embd\.weight is missing"):
        checkpoint.load(tmp_path / "m.gguf")
    (tmp_path / "m.gguf").write_text("hello")
    with pytest.raises(DataError, match="not a GGUF file"):
        checkpoint.load(tmp_path / "m.gguf")


MEMORY = """
import sys, torch
from pathlib import Path
from steelyard.nn import checkpoint
from steelyard.nn.transformer import build
from steelyard.catalog.architecture import Architecture
torch.set_num_threads(1)
checkpoint.load(sys.argv[1], dtype=torch.bfloat16)  # what torch imports is not counted
Path("/proc/self/clear_refs").write_text("5")
def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))
before = memory("VmRSS")
model = checkpoint.load(sys.argv[2], dtype=torch.bfloat16)
print(memory("VmHWM") - before, sum(p.nbytes for p in model.parameters()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@torch.no_grad()
def test_the_peak_of_memory_is_near_the_model(tmp_path):
    wide = dataclasses.replace(
        LLAMA, hidden_size=1024, head_dim=256, intermediate_size=4096, vocab_size=4096
    )
    write_model(tmp_path / "small.gguf", "llama", build(LLAMA), Kind.Q8_0)
    write_model(tmp_path / "large.gguf", "llama", build(wide), Kind.Q8_0)
    words = [sys.executable, "-c", MEMORY, tmp_path / "small.gguf", tmp_path / "large.gguf"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    peak, weights = map(int, done.stdout.split())
    assert weights > 60e6
    # Beside the parameters: the stored bytes of one tensor and the numbers of one chunk of it.
    assert peak < weights + 32e6


@pytest.mark.slow
@torch.no_grad()
def test_a_hundred_million_weights_load_in_two_seconds(tmp_path):
    wide = dataclasses.replace(
        LLAMA, hidden_size=1024, num_layers=6, head_dim=256, intermediate_size=4096, vocab_size=8192
    )
    write_model(tmp_path / "m.gguf", "llama", build(wide), Kind.Q4_K)
    start = time.perf_counter()
    model = checkpoint.load(tmp_path / "m.gguf")
    seconds = time.perf_counter() - start
    assert sum(p.numel() for p in model.parameters()) > 99e6
    assert seconds < 2.0
