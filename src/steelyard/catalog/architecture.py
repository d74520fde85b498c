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
        position: how positions enter; "xpos" is "rope" with scores that fall with the distance,
            "relative" the buckets of T5.
        mlp: MLP form; "swiglu" and "geglu" have three matrices, "gelu" (in its tanh form),
            "gelu-erf" (exact) and "relu" two.
        tied_embeddings: the output head reuses the token embedding.
        qkv_bias: query, key and value projections carry a bias.
        output_bias: the attention output projection carries a bias.
        mlp_bias: MLP matrices carry biases.
        qk_norm: RMSNorm on each query and key head.
        qk_norm_across_heads: that norm is over all query heads together, and all key heads together
            (OLMo 2); only with `qk_norm`.
        sandwich_norm: a second norm after attention and MLP, before the residual add (Gemma 2 and
            3).
        post_norm: the norms of a layer stand after attention and MLP, before the residual add,
            and none before them (OLMo 2).
        residual_norm: the norms of a layer stand after the residual add, and none before attention
            and MLP; there is no norm after the layers (BERT, the first Transformer).
        deepnorm: the same, with the residual stream weighted by a constant that grows with depth
            and initial weights that shrink with it (`nn.initial.schemes`).
        subln: besides the norm before, attention and MLP have one before their output projection,
            and initial weights grow with the logarithm of the depth (`nn.initial.schemes`).
        embedding_norm: a norm of the embeddings, before the first layer (BERT, BLOOM).
        unit_offset_norm: RMSNorms multiply by 1 plus their stored gain (Gemma).
        num_token_types: rows of a token-type table (BERT), 0 for none.
        pooler: a hidden-by-hidden pooler with bias at the end (BERT).
        num_experts: routed experts per MoE layer; 0 for a dense model.
        experts_per_token: routed experts each token visits.
        num_shared_experts: experts every token visits.
        moe_intermediate_size: width of one expert.
        router_bias: the router holds one balancing bias per expert, which counts in the choice
            alone (DeepSeek-V3); only with the router "sigmoid".
        normalized_gates: gates of a token's several experts are divided by their sum (Mixtral);
            else they are its scores as they are (DeepSeek-V2).
        gate_scale: factor of the gates (DeepSeek).
        num_expert_groups: groups of equally many experts, of which a token visits few (DeepSeek);
            0 for none.
        groups_per_token: how many groups that are.
        shared_expert_gate: what shared experts add is multiplied by the sigmoid of a product of
            their input (Qwen2).
        num_dense_layers: leading layers with a dense MLP in an MoE model.
        moe_every: of the layers after those, each of this number has experts, the last one of each
            group (GShard: 2), the others a dense MLP.
        router: how tokens are sent to experts: a softmax of products (GShard, Switch, Mixtral), a
            sigmoid of each (DeepSeek-V3), a softmax of cosines in few dimensions (X-MoE), by
            balanced transport (S-BASE), by the token's number, or by a policy that is learned from
            the loss.
        capacity_factor: tokens that an expert takes in training over its even share, the others
            pass by; 0 for no limit.
        kv_lora_rank: latent width of multi-head latent attention, 0 for ordinary attention.
        q_lora_rank: latent width of its queries, 0 for direct queries.
        qk_rope_head_dim: rotary part of an MLA head, within `head_dim`.
        v_head_dim: value width of an MLA head.
        mixer: what mixes tokens; "retention" decays with the distance instead of a softmax
            (RetNet), "dilated" attends in segments with gaps (LongNet).
        dilated_segments: tokens of a segment, one number for each pattern of dilated attention.
        dilated_rates: each that-many-th token of a segment takes part, one number for each.
        multiway: every weight of a layer stands twice, for the tokens before and from a position
            that each call states (text and image).
        drop_path: probability with which training leaves out what attention or MLP of the last
            layer add, growing from 0 linearly with the depth.
        rope_theta: rotary base.
        local_rope_theta: rotary base of layers with a sliding window (Gemma 3), 0 for `rope_theta`.
        rotary_dim: leading columns of a head that are turned (Phi-4-mini), 0 for all.
        no_rope_every: each layer of this number, counted from 1, does not turn queries and keys
            (SmolLM3: 4), 0 for none.
        sliding_window: tokens that a token attends, itself included, 0 for all before it.
        full_attention_every: each layer of this number, counted from 1, has no window (Gemma 2: 2,
            Gemma 3: 6), 0 for none.
        attention_scale: factor of the products of queries and keys, 0 for 1 / sqrt(head_dim).
        attention_softcap: c of scores c tanh(score / c) before the softmax (Gemma 2), 0 for none.
        logit_softcap: the same for logits, 0 for none.
        embedding_scale: factor of token embeddings (Gemma: sqrt(hidden_size)).
        residual_scale: factor of what attention and MLP add to the residual stream (Granite).
        logit_divisor: what logits are divided by (Granite).
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
    position: Literal["rope", "xpos", "learned", "relative", "alibi", "none"] = "rope"
    mlp: Literal["swiglu", "geglu", "gelu", "gelu-erf", "relu"] = "swiglu"
    tied_embeddings: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_across_heads: bool = False
    sandwich_norm: bool = False
    post_norm: bool = False
    residual_norm: bool = False
    deepnorm: bool = False
    subln: bool = False
    embedding_norm: bool = False
    unit_offset_norm: bool = False
    num_token_types: int = 0
    pooler: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    num_shared_experts: int = 0
    moe_intermediate_size: int = 0
    router_bias: bool = False
    normalized_gates: bool = True
    gate_scale: float = 1.0
    num_expert_groups: int = 0
    groups_per_token: int = 0
    shared_expert_gate: bool = False
    num_dense_layers: int = 0
    moe_every: int = 1
    router: Literal["softmax", "sigmoid", "cosine", "sinkhorn", "hash", "reinforce"] = "softmax"
    capacity_factor: float = 0.0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    mixer: Literal["attention", "retention", "dilated"] = "attention"
    dilated_segments: tuple[int, ...] = ()
    dilated_rates: tuple[int, ...] = ()
    multiway: bool = False
    drop_path: float = 0.0
    rope_theta: float = 10000.0
    local_rope_theta: float = 0.0
    rotary_dim: int = 0
    no_rope_every: int = 0
    sliding_window: int = 0
    full_attention_every: int = 0
    attention_scale: float = 0.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
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
        # The field alone changes nothing: only latents are expanded to values of another width.
        return (self.kv_lora_rank and self.v_head_dim) or self.head_dim

    @property
    def turned_dim(self) -> int:
        """Columns of a query or key head that rotary positions turn."""
        return self.qk_rope_head_dim if self.kv_lora_rank else self.rotary_dim or self.head_dim

    @property
    def norms_sums(self) -> bool:
        """Whether the norms of a layer stand after the residual add."""
        return self.residual_norm or self.deepnorm

    @property
    def num_expert_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        if not self.num_experts:
            return 0
        return max(self.num_layers - self.num_dense_layers, 0) // self.moe_every

    def has_experts(self, layer: int) -> bool:
        """Return whether the MLP of a layer is a mixture of experts.

        Args:
            layer: index from 0.

        Returns:
            False in a dense model, in its leading dense layers, and in those between.
        """
        # Groups are counted after the leading dense layers, and experts stand in their last layer.
        place = layer - self.num_dense_layers
        return self.num_experts > 0 and place >= 0 and (place + 1) % self.moe_every == 0

    def window_of(self, layer: int) -> int:
        """Return how many tokens a token attends in a layer, itself included.

        Args:
            layer: index from 0.

        Returns:
            The window; 0 for all tokens before it.
        """
        # Counted from 1, as published: the second layer of Gemma 2 is the first without a window.
        is_full = self.full_attention_every and (layer + 1) % self.full_attention_every == 0
        return 0 if is_full else self.sliding_window

    def is_turned(self, layer: int) -> bool:
        """Return whether a layer turns queries and keys by their position.

        Args:
            layer: index from 0.

        Returns:
            False without rotary positions, and in the layers `no_rope_every` leaves out.
        """
        # Counted from 1, as published: the fourth layer of SmolLM3 is the first left out.
        is_left_out = self.no_rope_every and (layer + 1) % self.no_rope_every == 0
        return self.position in ("rope", "xpos") and not is_left_out
