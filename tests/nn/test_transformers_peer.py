"""Logits of tiny models equal those of `transformers` in fp32, both ways through a folder."""

import dataclasses
import warnings

import pytest
import torch

from steelyard.files import read_json
from steelyard.nn import checkpoint
from steelyard.nn.quantizing.folder import write_quantized
from steelyard.nn.quantizing.layer import StoredType
from steelyard.nn.quantizing.stack import StackRecipe, quantize_stack
from steelyard.nn.transformer import build

from .conftest import LLAMA

pytestmark = pytest.mark.peers

COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 112,
    "vocab_size": 131,
    "max_position_embeddings": 96,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 3}
LATENT = (
    COMMON
    | EXPERTS
    | {"num_key_value_heads": 8, "kv_lora_rank": 48, "q_lora_rank": 40, "qk_nope_head_dim": 16}
    | {"qk_rope_head_dim": 8, "v_head_dim": 24, "n_shared_experts": 2, "first_k_dense_replace": 1}
    | {"routed_scaling_factor": 1.7}
)
CONFIGS = {
    "Llama": COMMON | {"tie_word_embeddings": False, "rope_theta": 500.0},
    "LlamaBias": COMMON | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "Qwen2": COMMON | {"tie_word_embeddings": True},
    "Qwen3": COMMON | {"head_dim": 16},
    "Mistral": COMMON | {"sliding_window": None},
    "MistralWindow": COMMON | {"sliding_window": 20},
    "Gemma": COMMON | {"head_dim": 16},
    "Gemma2": COMMON
    | {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 20}
    | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0},
    "Gemma3Text": COMMON | {"head_dim": 16, "sliding_window": 20, "sliding_window_pattern": 2},
    "Phi3": COMMON | {"sliding_window": 20, "pad_token_id": 0},
    "SmolLM3": COMMON | {"no_rope_layer_interval": 2, "pad_token_id": 0},
    "Granite": COMMON
    | {"embedding_multiplier": 6.0, "attention_multiplier": 0.2}
    | {"residual_multiplier": 0.4, "logits_scaling": 3.0},
    "Olmo2": COMMON | {"num_key_value_heads": 8},
    "Mixtral": COMMON | {"num_local_experts": 6, "num_experts_per_tok": 3},
    "Qwen2Moe": COMMON | EXPERTS | {"num_experts": 6, "shared_expert_intermediate_size": 64},
    "Qwen3Moe": COMMON | EXPERTS | {"num_experts": 6, "norm_topk_prob": True, "head_dim": 16},
    "DeepseekV2": LATENT | {"n_routed_experts": 6, "topk_method": "greedy", "q_lora_rank": None},
    "DeepseekV3": LATENT
    | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0},
    "GPT2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 131, "n_positions": 96},
    "OPT": {k: v for k, v in COMMON.items() if "intermediate" not in k and "key_value" not in k}
    | {"ffn_dim": 112, "word_embed_proj_dim": 64},
}


@pytest.fixture
def transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformers")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_logits_equal(name, transformers, tmp_path, record_property):
    family = name.removesuffix("Bias").removesuffix("Window")
    config = getattr(transformers, f"{family}Config")(
        **CONFIGS[name], attn_implementation="eager", initializer_range=0.2
    )
    torch.manual_seed(0)
    heads = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}
    head = heads.get(family, f"{family}ForCausalLM")
    theirs = getattr(transformers, head)(config).eval()
    for parameter in theirs.parameters():
        if parameter.ndim == 1:  # biases start at 0 and gains at 1, which would hide a mix-up
            parameter.add_(0.1 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = checkpoint.load(tmp_path / "theirs")
    tokens = torch.randint(0, 131, (3, 80), generator=torch.Generator().manual_seed(1))
    expected = theirs(tokens).logits
    difference = (ours(tokens) - expected).abs().max().item()
    record_property("difference", difference)
    print(f"{name}: largest difference {difference:.2e} of logits up to {expected.abs().max():.1f}")
    assert difference < 1e-4
    checkpoint.save(ours, tmp_path / "ours")
    # By the class that our file names: a Phi-3 is saved as the Mistral that it equals.
    back = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    ).eval()
    assert (back(tokens).logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_a_quantized_folder_means_the_same(dtype, transformers, tmp_path):
    pytest.importorskip("compressed_tensors")
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    wide = {"hidden_size": 128, "num_layers": 2, "intermediate_size": 192}
    arch = dataclasses.replace(LLAMA, **heads, **wide)
    checkpoint.save(build(arch, dtype=dtype), tmp_path / "source")
    model = checkpoint.load(tmp_path / "source", dtype=None)
    tokens = torch.randint(0, arch.vocab_size, (4, 32))
    types: tuple[dict[str, StoredType], ...] = (
        {"qkv": "int4", "out": "int8", "up": "plain", "down": "int4"},
        {"qkv": "int8", "out": "int4", "up": "int4", "down": "plain"},
    )
    recipe = StackRecipe(types=types, group=64)
    asked = {"tokens": tokens, "calibration": slice(0, 3), "passages": {}}
    quantize_stack(model, "llama", recipe, ("gptq",), tmp_path / "stage", **asked)
    config = read_json(tmp_path / "source" / "config.json")
    layers = (tmp_path / "stage", "gptq")
    write_quantized(model, config, tmp_path / "source", recipe, layers, tmp_path / "made")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "made", attn_implementation="eager", dtype=torch.float32
    ).eval()
    expected = theirs(tokens).logits
    difference = (checkpoint.load(tmp_path / "made")(tokens) - expected).abs().max().item()
    print(f"{dtype}: largest difference {difference:.2e} of logits to {expected.abs().max():.1f}")
    assert difference < 1e-4
