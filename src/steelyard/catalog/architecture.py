"""A transformer's architecture: the record that catalog, cost, nn, train and serve share."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Architecture"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """Shape of one transformer; enough to count its parameters, cost it and build it.

    Attributes:
        name: catalog name.
        kind: decoder, encoder, or encoder-decoder (`num_layers` each).
        hidden_size: width of the residual stream.
        num_layers: transformer layers.
        num_heads: query heads.
        num_kv_heads: key/value heads; equal to `num_heads` without grouping.
        head_dim: width of a query or key head; with multi-head latent attention both its parts, the
            rotary one included.
        intermediate_size: width of the dense MLP.
        vocab_size: rows of the token embedding.
        max_positions: longest sequence; also the rows of a learned position table.
        position_offset: unused leading rows of a learned position table beyond `max_positions` (OPT
            keeps 2).
        norm: normalization layer.
        position: how positions enter.
        mlp: MLP form; "swiglu" and "geglu" have three matrices, "gelu" and "relu" two.
        tied_embeddings: the output head reuses the token embedding.
        qkv_bias: query, key and value projections carry a bias.
        output_bias: the attention output projection carries a bias.
        mlp_bias: MLP matrices carry biases.
        qk_norm: RMSNorm on each query and key head.
        sandwich_norm: a second norm after attention and MLP, before the residual add (Gemma 2 and
            3).
        num_token_types: rows of a token-type table (BERT), 0 for none.
        pooler: a hidden-by-hidden pooler with bias at the end (BERT).
        num_experts: routed experts per MoE layer; 0 for a dense model.
        experts_per_token: routed experts each token visits.
        num_shared_experts: experts every token visits.
        moe_intermediate_size: width of one expert.
        router_bias: the router holds one balancing bias per expert (DeepSeek-V3).
        num_dense_layers: leading layers with a dense MLP in an MoE model.
        kv_lora_rank: latent width of multi-head latent attention, 0 for ordinary attention.
        q_lora_rank: latent width of its queries, 0 for direct queries.
        qk_rope_head_dim: rotary part of an MLA head, within `head_dim`.
        v_head_dim: value width of an MLA head.
        rope_theta: rotary base.
        norm_eps: epsilon of the norms.
        published_parameters: size its authors state, 0 when unknown.
        source: where the facts stand.
        confidence: high, medium or unsure.
    """

    name: str
    kind: Literal["decoder", "encoder", "encoder-decoder"] = "decoder"
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int = 2048
    position_offset: int = 0
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    position: Literal["rope", "learned", "relative", "alibi", "none"] = "rope"
    mlp: Literal["swiglu", "geglu", "gelu", "relu"] = "swiglu"
    tied_embeddings: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sandwich_norm: bool = False
    num_token_types: int = 0
    pooler: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    num_shared_experts: int = 0
    moe_intermediate_size: int = 0
    router_bias: bool = False
    num_dense_layers: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    published_parameters: float = 0.0
    source: str = ""
    confidence: str = "high"

    @property
    def is_gated(self) -> bool:
        """Whether the MLP multiplies two projections of its input, and so has three matrices."""
        return self.mlp in ("swiglu", "geglu")

    @property
    def value_dim(self) -> int:
        """Width of a value head: only latent attention has one of its own."""
        return (self.kv_lora_rank and self.v_head_dim) or self.head_dim
