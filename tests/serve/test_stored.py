"""Weights of files go into the products as they are stored."""

import shutil

import pytest
import torch
from tests.nn.test_quantized import FORMS, SMALL, quantize

from steelyard.nn import checkpoint
from steelyard.nn.numerics.int4 import Int4Groups
from steelyard.nn.numerics.int8 import Int8Rows
from steelyard.nn.stored import StoredLinear
from steelyard.nn.transformer import build
from steelyard.serve.build import load_model
from steelyard.serve.options import EngineOptions
from steelyard.serve.running.native.library import compiled_library
from steelyard.serve.running.native.trial import step_difference
from steelyard.serve.running.weights import chosen_weights

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
STRAIGHT = {"gptq": Int4Groups, "gptq 2": Int4Groups, "awq": Int4Groups, "packed": Int4Groups}
STRAIGHT |= {"packed with zeros": Int4Groups, "whole": Int8Rows}
OPTIONS = EngineOptions(pool_bytes=2**20)


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
@pytest.mark.parametrize("form", ["gptq", "awq", "gptq by activations", "packed", "whole"])
def test_a_native_step_over_codes_equals_plain_products_of_their_numbers(folders, form):
    model = load_model(folders[form], OPTIONS)
    weights = chosen_weights(model, "auto")
    assert step_difference(model, compiled_library(), 2, weights) < 5e-2
