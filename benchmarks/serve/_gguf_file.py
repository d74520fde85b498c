"""What llama.cpp calls the fields and tensors of a Llama."""

import numpy as np
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import Transformer

__all__ = ["gguf_fields", "gguf_tensors"]


def gguf_fields(arch: Architecture) -> dict[str, float]:
    """Return the fields of a shape, without the name of the family in front."""
    return {
        "context_length": arch.max_positions,
        "embedding_length": arch.hidden_size,
        "block_count": arch.num_layers,
        "feed_forward_length": arch.intermediate_size,
        "attention.head_count": arch.num_heads,
        "attention.head_count_kv": arch.num_kv_heads,
        "rope.dimension_count": arch.head_dim,
        "rope.freq_base": arch.rope_theta,
        "attention.layer_norm_rms_epsilon": arch.norm_eps,
    }


def gguf_tensors(model: Transformer) -> dict[str, np.ndarray]:
    """Return the tensors of a Llama by llama.cpp's names, queries and keys in its order of rows."""
    arch, state = model.architecture, model.state_dict()
    kept = {
        "token_embd.weight": state["embedding.weight"],
        "output_norm.weight": state["norm.weight"],
    }
    if not arch.tied_embeddings:
        kept["output.weight"] = state["output.weight"]
    for layer in range(arch.num_layers):
        ours, theirs = f"layers.{layer}.", f"blk.{layer}."
        heads, keys = arch.num_heads, arch.num_kv_heads
        query, key, value = state[f"{ours}qkv.weight"].split(
            [count * arch.head_dim for count in (heads, keys, keys)]
        )
        gate, up = state[f"{ours}up.weight"].chunk(2)
        kept |= {
            f"{theirs}attn_norm.weight": state[f"{ours}attention_norm.weight"],
            f"{theirs}ffn_norm.weight": state[f"{ours}mlp_norm.weight"],
            f"{theirs}attn_q.weight": _permuted(query, heads),
            f"{theirs}attn_k.weight": _permuted(key, keys),
            f"{theirs}attn_v.weight": value,
            f"{theirs}attn_output.weight": state[f"{ours}out.weight"],
            f"{theirs}ffn_gate.weight": gate,
            f"{theirs}ffn_up.weight": up,
            f"{theirs}ffn_down.weight": state[f"{ours}down.weight"],
        }
    return {name: tensor.numpy() for name, tensor in kept.items()}


def _permuted(weights: Tensor, heads: int) -> Tensor:
    """Interleave the halves of each head, as llama.cpp's converter does."""
    return weights.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
