"""Writes GGUF files with the format's own package, the way llama.cpp's converter does."""

import dataclasses

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from steelyard.catalog.architecture import Architecture
from steelyard.nn.names import slots

# Rows of 256 numbers, so that blocks of every type fit.
LLAMA = Architecture(
    name="tiny",
    hidden_size=256,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=512,
    vocab_size=97,
    max_positions=64,
)
UNTIED = dataclasses.replace(LLAMA, tied_embeddings=False, rope_theta=500.0)
BIASED = dataclasses.replace(
    LLAMA, qkv_bias=True, output_bias=True, mlp_bias=True, tied_embeddings=False
)
QWEN2 = dataclasses.replace(LLAMA, qkv_bias=True)
QWEN3 = dataclasses.replace(LLAMA, qk_norm=True, head_dim=32)
GEMMA = dataclasses.replace(
    LLAMA, mlp="geglu", unit_offset_norm=True, embedding_scale=16.0, head_dim=32
)
LATER = dataclasses.replace(
    GEMMA, num_layers=3, sandwich_norm=True, sliding_window=7, full_attention_every=2
)
GEMMA2 = dataclasses.replace(LATER, attention_softcap=2.0, logit_softcap=4.0)
GEMMA3 = dataclasses.replace(
    LATER, qk_norm=True, full_attention_every=3, local_rope_theta=100.0, rope_theta=5000.0
)
PHI3 = dataclasses.replace(UNTIED, rotary_dim=48, sliding_window=9)
SCALED = {"attention_scale": 0.2, "embedding_scale": 6.0}
SCALED |= {"residual_scale": 0.5, "logit_divisor": 2.0}
FAMILIES = {
    "llama": ("llama", LLAMA),
    "untied": ("llama", UNTIED),
    "biased": ("llama", BIASED),
    "qwen2": ("qwen2", QWEN2),
    "qwen3": ("qwen3", QWEN3),
    "gemma": ("gemma", GEMMA),
    "gemma2": ("gemma2", GEMMA2),
    "gemma3": ("gemma3", GEMMA3),
    "phi3": ("phi3", PHI3),
    "granite": ("granite", dataclasses.replace(LLAMA, **SCALED)),
    "smollm3": ("smollm3", dataclasses.replace(LLAMA, num_layers=4, no_rope_every=4)),
    "olmo2": (
        "olmo2",
        dataclasses.replace(UNTIED, post_norm=True, qk_norm=True, qk_norm_across_heads=True),
    ),
}

PLAIN = {Kind.F32: np.float32, Kind.F16: np.float16}
K_TYPES = (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TURNED = ("llama", "granite", "smollm3")


def gguf_name(part, family="llama"):
    """The name of a Hugging Face tensor, spelt out a second time."""
    module, kind = part.rsplit(".", 1)
    if module in NAMES:
        return f"{NAMES[module]}.{kind}"
    _, _, layer, inside = module.split(".", 3)
    if inside == "post_attention_layernorm" and family in ("gemma2", "gemma3", "olmo2"):
        return f"blk.{layer}.post_attention_norm.{kind}"
    return f"blk.{layer}.{NAMES[inside]}.{kind}"


def permuted(weights, heads):
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    shape = (heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return weights.reshape(shape).swapaxes(1, 2).reshape(weights.shape)


def unpermuted(weights, heads):
    shape = (heads, weights.shape[0] // heads // 2, 2, *weights.shape[1:])
    return weights.reshape(shape).swapaxes(1, 2).reshape(weights.shape)


def random_blocks(shape, kind, seed):
    """Blocks of a K type with random codes and scales of sane size; the package writes none."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(seed)
    count = int(np.prod(shape)) // block
    raw = generator.integers(0, 256, (count, size), dtype=np.uint8)
    scales = generator.uniform(1e-5, 2e-4, (count, 2)).astype(np.float16).view(np.uint8)
    if kind == Kind.Q6_K:
        raw[:, -2:] = scales[:, :2]
    else:
        raw[:, :4] = scales
    return raw.reshape(*shape[:-1], -1)


def encode(weights, kind, seed=0):
    if kind in K_TYPES:
        return random_blocks(weights.shape, kind, seed)
    return gguf.quants.quantize(weights, kind)


def new_writer(path, family, arch, name="llama"):
    """A writer with the fields of an architecture."""
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(arch.max_positions)
    writer.add_embedding_length(arch.hidden_size)
    writer.add_block_count(arch.num_layers)
    writer.add_feed_forward_length(arch.intermediate_size)
    writer.add_head_count(arch.num_heads)
    writer.add_head_count_kv(arch.num_kv_heads)
    writer.add_key_length(arch.head_dim)
    writer.add_value_length(arch.head_dim)
    writer.add_rope_dimension_count(arch.rotary_dim or arch.head_dim)
    writer.add_rope_freq_base(arch.rope_theta)
    writer.add_layer_norm_rms_eps(arch.norm_eps)
    if family in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(arch.sliding_window)
    if family in ("gemma2", "gemma3"):
        writer.add_uint32(f"{family}.attention.sliding_window_pattern", arch.full_attention_every)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(arch.attention_softcap)
        writer.add_final_logit_softcapping(arch.logit_softcap)
    if family == "gemma3":
        writer.add_float32("gemma3.rope.freq_base_swa", arch.local_rope_theta)
    if family == "granite":
        writer.add_attention_scale(arch.attention_scale)
        writer.add_embedding_scale(arch.embedding_scale)
        writer.add_residual_scale(arch.residual_scale)
        writer.add_logit_scale(arch.logit_divisor)
    return writer


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(path, family, model, kind=Kind.F32, extra=lambda writer: None):
    """Write a model's tensors in a type, vectors in F32; its weights become the stored ones.

    Codes of the K types are random: their weights have nothing to do with those given.
    """
    arch = model.architecture
    writer = new_writer(path, family, arch)
    extra(writer)
    state = model.state_dict()
    for slot in slots(arch, family):
        for part, tensor in zip(slot.parts, state[slot.name].split(slot.rows), strict=True):
            heads = arch.num_kv_heads if "k_proj" in part else arch.num_heads
            turned = family in TURNED and ("q_proj" in part or "k_proj" in part)
            # As the converter does: the file has the factor, the model what it is beyond 1.
            offset = float(arch.unit_offset_norm and tensor.ndim == 1)
            weights = tensor.numpy() + np.float32(offset)
            stored = permuted(weights, heads) if turned else weights
            own = kind if tensor.ndim == 2 else Kind.F32
            raw = encode(np.ascontiguousarray(stored), own, seed=len(writer.tensors[0]))
            writer.add_tensor(gguf_name(part, family), raw, raw_dtype=own)
            back = gguf.quants.dequantize(raw, own).reshape(weights.shape)
            back = unpermuted(back, heads) if turned else back
            tensor.copy_(torch.from_numpy(np.array(back)) - offset)
    close(writer)
