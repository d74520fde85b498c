"""Tiny architectures that no Hugging Face class has the shape of."""

import dataclasses

from tests.nn.conftest import LLAMA

from steelyard.catalog.architecture import Architecture


def _wide(**changes) -> Architecture:
    return dataclasses.replace(LLAMA, **changes)


def _experts(**changes) -> Architecture:
    return _wide(
        **{"num_experts": 4, "experts_per_token": 1, "moe_intermediate_size": 32} | changes
    )


WIDE = {
    "post": _wide(residual_norm=True, embedding_scale=48**0.5),
    "deepnorm": _wide(deepnorm=True, norm="layernorm", embedding_norm=True),
    "subln": _wide(subln=True, embedding_scale=48**0.5),
    "xpos": _wide(position="xpos", qk_norm=True, no_rope_every=2),
    "relative": _wide(position="relative", attention_scale=1.0),
    "alibi": _wide(position="alibi", tied_embeddings=False),
    "retention": _wide(mixer="retention", qkv_bias=True),
    "dilated": _wide(mixer="dilated", dilated_segments=(8, 16), dilated_rates=(1, 2)),
    "encoder": _wide(kind="encoder", position="relative", tied_embeddings=False),
    "multiway": _wide(multiway=True, drop_path=0.1),
    "softmax": _experts(experts_per_token=2, capacity_factor=1.5, subln=True),
    "cosine": _experts(experts_per_token=2, router="cosine", moe_every=2),
    "sinkhorn": _experts(router="sinkhorn", mlp="gelu", mlp_bias=True),
    "hash": _experts(router="hash", num_dense_layers=1),
    "reinforce": _experts(router="reinforce"),
    "shared": _experts(experts_per_token=3, num_shared_experts=2),
    "sigmoid": _experts(
        num_experts=8,
        experts_per_token=3,
        router="sigmoid",
        router_bias=True,
        gate_scale=1.5,
        num_expert_groups=4,
        groups_per_token=2,
        num_shared_experts=1,
        shared_expert_gate=True,
    ),
    "latent": _wide(num_kv_heads=6, kv_lora_rank=16, qk_rope_head_dim=4, v_head_dim=12),
}
