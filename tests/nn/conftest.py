"""Tiny architectures of every kind that a decoder can be built from."""

import dataclasses

import pytest

from steelyard.catalog.architecture import Architecture

LLAMA = Architecture(
    name="tiny",
    hidden_size=48,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=80,
    vocab_size=97,
    max_positions=64,
)
GPT2 = dataclasses.replace(
    LLAMA,
    num_kv_heads=6,
    norm="layernorm",
    position="learned",
    mlp="gelu",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
)
VARIANTS = {
    "llama": LLAMA,
    "untied": dataclasses.replace(LLAMA, tied_embeddings=False),
    "qwen2": dataclasses.replace(LLAMA, qkv_bias=True),
    "qwen3": dataclasses.replace(LLAMA, qk_norm=True, head_dim=16),
    "gemma": dataclasses.replace(
        LLAMA,
        mlp="geglu",
        sandwich_norm=True,
        unit_offset_norm=True,
        qk_norm=True,
        embedding_scale=48**0.5,
        attention_scale=24**-0.5,
        attention_softcap=5.0,
        logit_softcap=30.0,
        sliding_window=5,
        full_attention_every=3,
        local_rope_theta=100.0,
    ),
    "olmo2": dataclasses.replace(LLAMA, post_norm=True, qk_norm=True, qk_norm_across_heads=True),
    "granite": dataclasses.replace(
        LLAMA,
        attention_scale=0.2,
        embedding_scale=6.0,
        residual_scale=0.5,
        logit_divisor=2.0,
    ),
    "smollm3": dataclasses.replace(LLAMA, no_rope_every=2),
    "phi4": dataclasses.replace(LLAMA, rotary_dim=6, tied_embeddings=False),
    "mistral": dataclasses.replace(LLAMA, sliding_window=7),
    "gpt2": GPT2,
    "opt": dataclasses.replace(GPT2, mlp="relu", position_offset=2),
}


@pytest.fixture
def llama() -> Architecture:
    return LLAMA


@pytest.fixture
def gpt2() -> Architecture:
    return GPT2


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def arch(request) -> Architecture:
    return request.param
