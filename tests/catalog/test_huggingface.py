"""Reading and writing config.json: real files' fields, round trips, and refusals."""

import dataclasses
import json

import pytest

from steelyard.catalog import (
    Architecture,
    architecture_by_name,
    count_parameters,
    from_huggingface,
    names,
    to_huggingface,
)
from steelyard.catalog.huggingface import MODEL_TYPES
from steelyard.errors import CatalogError, SteelyardWarning

_LLAMA3 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "torch_dtype": "bfloat16",
}
_NOT_TRAITS = {"name", "source", "confidence", "published_parameters"}


def _same_shape(left: Architecture, right: Architecture) -> bool:
    traits = [field.name for field in dataclasses.fields(left) if field.name not in _NOT_TRAITS]
    return all(getattr(left, trait) == getattr(right, trait) for trait in traits)


@pytest.mark.parametrize("name", names("architectures"))
def test_round_trip_of_every_architecture(name):
    arch = architecture_by_name(name)
    values = json.loads(json.dumps(to_huggingface(arch)))
    back = from_huggingface(values)
    assert _same_shape(arch, back)
    assert count_parameters(back) == count_parameters(arch)


def test_catalog_covers_the_model_types():
    covered = {
        to_huggingface(architecture_by_name(name))["model_type"] for name in names("architectures")
    }
    assert covered | {"mistral", "qwen2_moe"} == set(MODEL_TYPES)


def test_llama_3_config_gives_the_catalog_record(tmp_path):
    (tmp_path / "Meta-Llama-3-8B").mkdir()
    path = tmp_path / "Meta-Llama-3-8B" / "config.json"
    path.write_text(json.dumps(_LLAMA3))
    arch = from_huggingface(path)
    assert arch == from_huggingface(path.parent)
    assert arch.name == "Meta-Llama-3-8B" and str(path) in arch.source
    assert _same_shape(arch, architecture_by_name("llama-3-8b"))


def test_bloom_config_gives_the_catalog_record():
    config = {
        "model_type": "bloom",
        "n_embed": 14336,
        "n_layer": 70,
        "num_attention_heads": 112,
        "seq_length": 2048,
        "vocab_size": 250880,
        "layer_norm_epsilon": 1e-05,
        "apply_residual_connection_post_layernorm": False,
    }
    assert _same_shape(from_huggingface(config), architecture_by_name("bloom-176b"))


def test_gpt2_config_gives_the_catalog_record():
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "n_ctx": 1024,
        "vocab_size": 50257,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-05,
        "n_inner": None,
    }
    assert _same_shape(from_huggingface(config), architecture_by_name("gpt2"))


def test_newer_files_nest_the_rotary_base():
    config = {
        key: value for key, value in _LLAMA3.items() if key not in ("rope_theta", "rope_scaling")
    }
    config["rope_parameters"] = {"rope_theta": 500000.0, "rope_type": "default"}
    assert from_huggingface(config).rope_theta == 500000.0


def test_rescaled_rotations_warn():
    with pytest.warns(SteelyardWarning, match="llama3"):
        from_huggingface(_LLAMA3 | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})


def test_gemma_3_text_model_inside_a_multimodal_config():
    text = to_huggingface(architecture_by_name("gemma-3-1b"))
    arch = from_huggingface({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert _same_shape(arch, architecture_by_name("gemma-3-1b"))


_RELEASED = {
    "gemma-3-4b": {
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "vision_config": {},
    },
    "granite-3.3-8b": {
        "attention_bias": False,
        "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12.0,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 12800,
        "logits_scaling": 16.0,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "granite",
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 8,
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000000.0,
        "tie_word_embeddings": True,
        "vocab_size": 49159,
    },
    "smollm3-3b": {
        "model_type": "smollm3",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0] * 9,
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 5000000.0,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 128256,
    },
}


@pytest.mark.parametrize("name", _RELEASED)
def test_files_as_released_give_the_catalog_record(name):
    assert _same_shape(from_huggingface(_RELEASED[name]), architecture_by_name(name))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sliding_window": 4096}, "sliding_window = 4096 is not supported in a model of type"),
        ({"num_experts": 8}, "num_experts = 8"),
        ({"clip_qkv": 8.0}, "clip_qkv"),
        ({"layer_types": ["sliding_attention"] * 32}, "layer_types"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
    ],
)
def test_traits_that_llama_lacks_are_refused_by_name(change, says):
    with pytest.raises(CatalogError, match=says):
        from_huggingface(_LLAMA3 | change)


def test_unknown_model_type_names_the_supported_ones():
    with pytest.raises(CatalogError, match="'mamba' is not supported") as caught:
        from_huggingface({"model_type": "mamba"})
    assert all(kind in caught.value.hint for kind in MODEL_TYPES)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "big"}, "'hidden_size' is 'big'"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_heads"),
        ({"num_key_value_heads": 5}, "does not divide"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_theta": "far"}, "rope_theta"),
        ({"model_type": None}, "None is not supported"),
    ],
)
def test_unusable_fields_are_named(change, says):
    with pytest.raises(CatalogError, match=says):
        from_huggingface(_LLAMA3 | change)


@pytest.mark.parametrize("text", ["", "[]", "{", '"llama"'])
def test_broken_files_are_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CatalogError, match=r"config\.json"):
        from_huggingface(tmp_path)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(CatalogError, match="no such file"):
        from_huggingface(tmp_path)


@pytest.mark.parametrize(
    "traits",
    [
        {"norm": "layernorm"},
        {"mlp": "gelu"},
        {"position": "alibi"},
        {"qk_norm": True, "qkv_bias": True},
    ],
)
def test_combinations_without_a_class_are_refused(traits):
    with pytest.raises(CatalogError, match="no Hugging Face class"):
        to_huggingface(dataclasses.replace(architecture_by_name("llama-2-7b"), **traits))
