"""Weights of files go into the products as they are stored."""

import ctypes
import dataclasses
import os
import shutil
import threading

import gguf
import numpy as np
import pytest
import torch
from tests.nn.gguf_files import LLAMA, UNTIED, write_model
from tests.nn.test_quantized import FORMS, SMALL, Q, quantize

from steelyard.errors import DataError, SteelyardWarning
from steelyard.nn import checkpoint
from steelyard.nn.numerics.int4 import Int4Groups
from steelyard.nn.numerics.int8 import Int8Rows
from steelyard.nn.stored import StoredLinear, StoredTable
from steelyard.nn.transformer import build
from steelyard.serve.build import load_model, make_engine
from steelyard.serve.options import EngineOptions
from steelyard.serve.running import packed_model
from steelyard.serve.running.linear import PackedLinear, can_pack
from steelyard.serve.running.native import maps, packed_cache
from steelyard.serve.running.native.library import compiled_library
from steelyard.serve.running.native.maps import LINEARS, PackedMaps
from steelyard.serve.running.native.trial import step_difference
from steelyard.serve.running.weights import chosen_weights
from steelyard.serve.scheduling.params import SamplingParams

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
STRAIGHT = {"gptq": Int4Groups, "gptq 2": Int4Groups, "awq": Int4Groups, "packed": Int4Groups}
STRAIGHT |= {"packed with zeros": Int4Groups, "whole": Int8Rows}
OPTIONS = EngineOptions(pool_bytes=2**20)


def slow(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def folder_of(form, path):
    make, settings = FORMS[form]
    checkpoint.save(build(SMALL, seed=1), path)
    quantize(path, make, settings)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {form: folder_of(form, tmp_path_factory.mktemp("folder")) for form in FORMS}


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_codes_of_a_folder_are_kept(folders, form):
    plain = checkpoint.load(folders[form])
    model = load_model(folders[form], OPTIONS)
    assert chosen_weights(model, "auto") == ("int4" if STRAIGHT.get(form) is Int4Groups else "int8")
    for name in ("qkv", "out", "up", "down"):
        item = getattr(model.layers[0], name)
        assert isinstance(item, StoredLinear)
        codes, wanted = item.codes(), getattr(plain.layers[0], name).weight
        assert isinstance(codes, STRAIGHT.get(form, Int8Rows))
        if form in STRAIGHT:
            assert torch.equal(codes.dequantize(), wanted)
        else:
            # Rounded to bytes, the largest number of a row to 127 steps.
            off = (codes.dequantize() - wanted).abs() - 0.51 * codes.scales[:, None]
            assert float(off.max()) <= 0
        assert torch.equal(item.weight, wanted)


@needs_compiler
@pytest.mark.parametrize("form", ["awq", "whole", *slow("gptq", "gptq by activations", "packed")])
def test_a_native_step_over_codes_equals_plain_products_of_their_numbers(folders, form):
    model = load_model(folders[form], OPTIONS)
    weights = chosen_weights(model, "auto")
    assert step_difference(model, compiled_library(), 2, weights) < 5e-2


@needs_compiler
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", *slow("Q4_K", "F16")])
def test_a_native_step_over_blocks_equals_plain_products_of_their_numbers(kind, tmp_path):
    model = build(UNTIED if kind == "Q4_0" else LLAMA, seed=2)
    path = tmp_path / "model.gguf"
    with torch.no_grad():
        write_model(path, "llama", model, getattr(gguf.GGMLQuantizationType, kind))
    loaded = checkpoint.load(path, keep_stored=True)
    assert isinstance(loaded.embedding, StoredTable)
    tokens = torch.arange(12).view(2, 6)
    with torch.no_grad():
        # The model's own forward reads the blocks in every call: its weights are those of ggml.
        torch.testing.assert_close(loaded(tokens), model(tokens), rtol=1e-4, atol=1e-5)
    weights = chosen_weights(loaded, "auto")
    assert weights == {"Q8_0": "int8", "F16": "fp32"}.get(kind, "int4")
    for item in (loaded.layers[0].qkv, loaded.layers[1].down) if kind != "F16" else ():
        assert torch.equal(item.codes().dequantize(), item.weight)
    # Sums in another order may turn a number of a row to its next step.
    assert step_difference(loaded, compiled_library(), 2, weights) < 0.15
    # Forecasts count the bytes that are kept.
    packed = PackedMaps(loaded, compiled_library(), weights)
    stored = packed.stored()
    counted = sum(
        getattr(layer, name).in_features
        * getattr(layer, name).out_features
        * width.bytes_per_weight
        for name in LINEARS
        for layer, width in zip(loaded.layers, stored[name], strict=True)
    )
    counted += loaded.embedding.weight.numel() * stored["head"][0].bytes_per_weight
    assert packed.num_bytes == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize("asked", ["int8", *slow("fp32")])
@torch.no_grad()
def test_codes_are_turned_into_another_type_when_asked(folders, asked):
    options = dataclasses.replace(OPTIONS, weights=asked, native=False)
    plain = checkpoint.load(folders["packed"])
    prompt = list(range(9))
    params = SamplingParams(max_tokens=1, logprobs=5)
    answers = [
        make_engine(model, options).generate([prompt], params)[0].outputs[0]
        for model in (plain, folders["packed"])
    ]
    assert answers[0].tokens == answers[1].tokens


@pytest.mark.parametrize("form", ["awq", "packed", "whole"])
@torch.no_grad()
def test_torch_products_take_codes_with_zero_points_and_groups(folders, form):
    model = load_model(folders[form], OPTIONS)
    if not can_pack(chosen_weights(model, "auto")):
        pytest.skip("no such products in this PyTorch")
    item, rows = model.layers[0].down, torch.randn(40, 192)
    for count in (3, 40):
        found = PackedLinear(item.codes())(rows[:count])
        wanted = rows[:count] @ item.weight.T
        # Rows, scales and results are rounded to bfloat16.
        assert float((found - wanted).norm() / wanted.norm()) < 0.01


def test_without_products_of_nibbles_codes_are_turned_into_numbers(folders, monkeypatch):
    monkeypatch.setattr(packed_model, "can_pack", lambda kind: kind == "fp32")
    with pytest.warns(SteelyardWarning, match="codes of .* are turned into float32"):
        llm = make_engine(folders["packed"], dataclasses.replace(OPTIONS, native=False))
    assert llm.runner.weights == "fp32"


BAD = {
    "short scales": (Q + "scales", lambda item: item[:1], "groups"),
    "groups": (Q + "g_idx", lambda item: item + 2**30, "groups"),
    "zero points": (Q + "qzeros", lambda item: item[:1], "zero points"),
}


@pytest.mark.parametrize(("name", "change", "words"), BAD.values(), ids=BAD)
def test_codes_that_do_not_fit_are_refused_before_serving(name, change, words, tmp_path):
    make, settings = FORMS["gptq"]
    checkpoint.save(build(SMALL), tmp_path)
    quantize(tmp_path, make, settings, lambda held: held.update({name: change(held[name])}))
    with pytest.raises(DataError, match=words):
        make_engine(tmp_path, OPTIONS)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder of packed files; small models are kept too, however full the disk is."""
    monkeypatch.setattr(packed_cache, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(packed_cache, "_SPARE_BYTES", 0)
    monkeypatch.setattr(maps, "LEAST_BYTES", 0)
    return tmp_path / "packed"


def packed_maps(folder):
    model = load_model(folder, OPTIONS)
    found = maps.PackedMaps(model, compiled_library(), chosen_weights(model, "auto"))
    for thread in threading.enumerate():
        if thread.name == "keep-packed":
            thread.join()
    return found


def lines_of(found):
    """All memory that the maps point to, byte by byte."""
    library = compiled_library()
    return [
        ctypes.string_at(
            item.packed, library.steelyard_packed_bytes(item.kind, item.outputs, item.inputs)
        )
        for item in found.maps
    ]


@needs_compiler
@pytest.mark.parametrize("huge", [True, False])
def test_packed_weights_are_mapped_by_the_next_start(folders, kept, monkeypatch, huge):
    monkeypatch.setattr(packed_cache, "_huge_bytes", lambda address: 2**40 if huge else 0)
    first, second = packed_maps(folders["awq"]), packed_maps(folders["awq"])
    assert (first.is_mapped, second.is_mapped) == (False, True)
    assert first.num_bytes == second.num_bytes
    assert lines_of(first) == lines_of(second)
    assert len(list(kept.iterdir())) == 1


@needs_compiler
def test_damaged_files_are_packed_anew(folders, kept):
    wanted = lines_of(packed_maps(folders["awq"]))
    (path,) = kept.iterdir()
    whole = path.read_bytes()
    turned = bytearray(whole)
    turned[len(turned) // 3] ^= 1
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", bytes(turned), whole[1:]):
        path.write_bytes(damaged)
        found = packed_maps(folders["awq"])
        assert not found.is_mapped
        assert lines_of(found) == wanted
        # The file was written again.
        assert packed_maps(folders["awq"]).is_mapped


@needs_compiler
def test_a_cache_that_cannot_be_written_is_told_of(folders, kept):
    kept.write_text("a file where the folder should be")
    with pytest.warns(SteelyardWarning, match="packed weights are not kept"):
        assert not packed_maps(folders["awq"]).is_mapped


@needs_compiler
def test_a_nearly_full_disk_keeps_no_packed_weights(folders, kept, monkeypatch):
    monkeypatch.setattr(packed_cache, "_SPARE_BYTES", 2**80)
    packed_maps(folders["awq"])
    assert not packed_maps(folders["awq"]).is_mapped
    assert list(kept.iterdir()) == []


@needs_compiler
def test_another_file_or_changed_weights_are_not_mistaken(folders, kept):
    packed_maps(folders["awq"])
    assert not packed_maps(folders["gptq"]).is_mapped
    # A model whose weights somebody may have changed is never kept.
    plain = checkpoint.load(folders["awq"])
    maps.PackedMaps(plain, compiled_library(), "fp32")
    assert len(list(kept.iterdir())) == 2


def test_files_used_longest_ago_go_first(kept, monkeypatch):
    kept.mkdir()
    monkeypatch.setattr(packed_cache, "_MOST_BYTES", 4000)
    memory = np.zeros(1500, dtype=np.uint8)
    paths = [kept / f"{name}.weights" for name in "abc"]
    for age, path in enumerate(paths[:2]):
        packed_cache.write_packed(path, memory, [], 0)
        os.utime(path, (1e9 - age, 1e9 - age))
    leftover = kept / ".d.weights.1.x.part"
    leftover.write_bytes(bytes(9))
    os.utime(leftover, (1e9, 1e9))
    packed_cache.write_packed(paths[2], memory, [], 0)
    assert sorted(kept.iterdir()) == [paths[0], paths[2]]
    packed_cache.write_packed(paths[1], np.zeros(9000, dtype=np.uint8), [], 0)
    assert not paths[1].exists()
