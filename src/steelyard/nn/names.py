"""How Hugging Face names and lays out the tensors of the models that `nn.transformer` builds."""

from steelyard.catalog.architecture import Architecture
from steelyard.nn.slot import Slot

__all__ = ["slots"]


def slots(arch: Architecture, model_type: str) -> list[Slot]:
    """List where each parameter of a decoder is stored.

    Args:
        arch: what `nn.transformer` can build.
        model_type: "gpt2", "opt", or any whose tensors are named like Llama's.

    Returns:
        One slot per parameter of the model.

    Source: module names of the `transformers` classes LlamaForCausalLM, Gemma2ForCausalLM,
    Olmo2ForCausalLM, Phi3ForCausalLM, GPT2LMHeadModel, OPTForCausalLM, MixtralForCausalLM,
    Qwen2MoeForCausalLM and DeepseekV3ForCausalLM.
    """
    # Mistral and Qwen took over Llama's names, and so did most that came later.
    form = {"gpt2": _gpt2, "opt": _opt, "phi3": _phi3}.get(model_type, _llama)
    prefix, outside, layer_prefix, inside = form(arch)
    found = [
        Slot(
            name=name,
            parts=(prefix + stored,),
            rows=(rows,),
            width=arch.hidden_size if "embedding" in name else 0,
        )
        for name, stored, rows in outside
    ]
    for index in range(arch.num_layers):
        theirs = prefix + layer_prefix + f".{index}."
        if arch.kv_lora_rank:
            found += _latent_slots(arch, f"layers.{index}.latent", theirs + "self_attn.")
        if arch.has_experts(index):
            found += _expert_slots(arch, f"layers.{index}.experts", theirs, model_type)
        for name, stored, kind in inside:
            if (name == "qkv" and arch.kv_lora_rank) or (
                name in ("up", "down") and arch.has_experts(index)
            ):
                continue
            found += _layer_slots(
                arch,
                f"layers.{index}.{name}",
                tuple(theirs + part for part in stored),
                kind,
                model_type == "gpt2",
            )
    if not arch.tied_embeddings:
        found.append(
            Slot(
                name="output.weight",
                parts=("lm_head.weight",),
                rows=(arch.vocab_size,),
                width=arch.hidden_size,
            )
        )
    return found


Outside = list[tuple[str, str, int]]
Inside = list[tuple[str, tuple[str, ...], str]]


def _llama(arch: Architecture) -> tuple[str, Outside, str, Inside]:
    """Name the tensors of Llama, Mistral, Qwen, Gemma, SmolLM3, Granite and OLMo 2."""
    attention = tuple(f"self_attn.{part}_proj" for part in "qkv")
    inside = [
        *_layer_norms(arch),
        ("qkv", attention, "qkv"),
        ("out", ("self_attn.o_proj",), "out"),
        ("up", ("mlp.gate_proj", "mlp.up_proj"), "up"),
        ("down", ("mlp.down_proj",), "down"),
    ]
    if arch.qk_norm:
        inside += [
            ("query_norm", ("self_attn.q_norm",), "query_norm"),
            ("key_norm", ("self_attn.k_norm",), "key_norm"),
        ]
    return _in_model(arch, inside)


def _layer_norms(arch: Architecture) -> Inside:
    """Name the norms of a layer; the same name stands for another place where there are four."""
    if arch.post_norm or arch.sandwich_norm:
        after: Inside = [
            ("attention_post_norm", ("post_attention_layernorm",), "norm"),
            ("mlp_post_norm", ("post_feedforward_layernorm",), "norm"),
        ]
        if arch.post_norm:
            return after
        before = ("attention_norm", "input_layernorm"), ("mlp_norm", "pre_feedforward_layernorm")
        return [*((name, (stored,), "norm") for name, stored in before), *after]
    return [
        ("attention_norm", ("input_layernorm",), "norm"),
        ("mlp_norm", ("post_attention_layernorm",), "norm"),
    ]


def _phi3(arch: Architecture) -> tuple[str, Outside, str, Inside]:
    """Name the tensors of Phi-3, which stores queries, keys and values, and gate and up, as one."""
    inside = [
        *_layer_norms(arch),
        ("qkv", ("self_attn.qkv_proj",), "qkv"),
        ("out", ("self_attn.o_proj",), "out"),
        ("up", ("mlp.gate_up_proj",), "up"),
        ("down", ("mlp.down_proj",), "down"),
    ]
    return _in_model(arch, inside)


def _in_model(arch: Architecture, inside: Inside) -> tuple[str, Outside, str, Inside]:
    """Add what Llama and its descendants name alike outside the layers."""
    return (
        "model.",
        [("embedding.weight", "embed_tokens.weight", arch.vocab_size), *_last_norm(arch, "norm")],
        "layers",
        inside,
    )


def _gpt2(arch: Architecture) -> tuple[str, Outside, str, Inside]:
    """Name the tensors of GPT-2, whose queries, keys and values are stored as one."""
    inside = [
        ("attention_norm", ("ln_1",), "norm"),
        ("qkv", ("attn.c_attn",), "qkv"),
        ("out", ("attn.c_proj",), "out"),
        ("mlp_norm", ("ln_2",), "norm"),
        ("up", ("mlp.c_fc",), "up"),
        ("down", ("mlp.c_proj",), "down"),
    ]
    tables = [
        ("embedding.weight", "wte.weight", arch.vocab_size),
        ("position_embedding.weight", "wpe.weight", arch.max_positions),
    ]
    return "transformer.", [*tables, *_last_norm(arch, "ln_f")], "h", inside


def _opt(arch: Architecture) -> tuple[str, Outside, str, Inside]:
    """Name the tensors of OPT, whose position table has unused leading rows."""
    inside = [
        ("attention_norm", ("self_attn_layer_norm",), "norm"),
        ("qkv", tuple(f"self_attn.{part}_proj" for part in "qkv"), "qkv"),
        ("out", ("self_attn.out_proj",), "out"),
        ("mlp_norm", ("final_layer_norm",), "norm"),
        ("up", ("fc1",), "up"),
        ("down", ("fc2",), "down"),
    ]
    rows = arch.max_positions + arch.position_offset
    tables = [
        ("embedding.weight", "embed_tokens.weight", arch.vocab_size),
        ("position_embedding.weight", "embed_positions.weight", rows),
    ]
    return "model.decoder.", [*tables, *_last_norm(arch, "final_layer_norm")], "layers", inside


def _last_norm(arch: Architecture, stored: str) -> Outside:
    """Name the gain, and the shift of a LayerNorm, before the head."""
    kinds = ("weight", "bias") if arch.norm == "layernorm" else ("weight",)
    return [(f"norm.{kind}", f"{stored}.{kind}", arch.hidden_size) for kind in kinds]


def _layer_slots(
    arch: Architecture, name: str, parts: tuple[str, ...], kind: str, transposed: bool
) -> list[Slot]:
    """Make the slots of one module of a layer: its weight, and its bias if it has one."""
    hidden, inner = arch.hidden_size, arch.intermediate_size
    queries, keys = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    up_rows = inner * (2 if arch.is_gated else 1)
    rows, width, bias = {
        "norm": ((hidden,), 0, arch.norm == "layernorm"),
        "query_norm": ((queries if arch.qk_norm_across_heads else arch.head_dim,), 0, False),
        "key_norm": ((keys if arch.qk_norm_across_heads else arch.head_dim,), 0, False),
        "qkv": (
            (queries, keys, keys) if len(parts) == 3 else (queries + 2 * keys,),
            hidden,
            arch.qkv_bias,
        ),
        "out": ((hidden,), arch.num_heads * arch.value_dim, arch.output_bias),
        "up": ((up_rows // len(parts),) * len(parts), hidden, arch.mlp_bias),
        "down": ((hidden,), inner, arch.mlp_bias),
    }[kind]
    weights = tuple(f"{part}.weight" for part in parts)
    transposed = transposed and width > 0
    found = [
        Slot(name=f"{name}.weight", parts=weights, rows=rows, width=width, transposed=transposed)
    ]
    if bias:
        biases = tuple(f"{part}.bias" for part in parts)
        found.append(Slot(name=f"{name}.bias", parts=biases, rows=rows))
    return found


def _latent_slots(arch: Architecture, name: str, theirs: str) -> list[Slot]:
    """Make the slots of latent attention, but for its output."""
    hidden, rank, reduced = arch.hidden_size, arch.kv_lora_rank, arch.q_lora_rank
    plain = arch.head_dim - arch.qk_rope_head_dim
    sizes = {
        "queries": (
            "q_b_proj" if reduced else "q_proj",
            arch.num_heads * arch.head_dim,
            reduced or hidden,
        ),
        "reduction": ("kv_a_proj_with_mqa", rank + arch.qk_rope_head_dim, hidden),
        "norm": ("kv_a_layernorm", rank, 0),
        "expansion": ("kv_b_proj", arch.num_heads * (plain + arch.v_head_dim), rank),
    }
    if reduced:
        sizes |= {
            "query_reduction": ("q_a_proj", reduced, hidden),
            "query_norm": ("q_a_layernorm", reduced, 0),
        }
    return [
        Slot(
            name=f"{name}.{ours}.weight",
            parts=(f"{theirs}{stored}.weight",),
            rows=(rows,),
            width=width,
        )
        for ours, (stored, rows, width) in sizes.items()
    ]


def _expert_slots(arch: Architecture, name: str, theirs: str, model_type: str) -> list[Slot]:
    """Make the slots of a mixture of experts."""
    count, hidden, inner = arch.num_experts, arch.hidden_size, arch.moe_intermediate_size
    is_mixtral = model_type == "mixtral"
    theirs += "block_sparse_moe." if is_mixtral else "mlp."
    gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    each = [f"{theirs}experts.{expert}." for expert in range(count)]
    ups = tuple(f"{one}{part}.weight" for one in each for part in (gate, up))
    downs = tuple(f"{one}{down}.weight" for one in each)
    found = [
        Slot(
            name=f"{name}.router.weight",
            parts=(theirs + "gate.weight",),
            rows=(count,),
            width=hidden,
        ),
        Slot(name=f"{name}.up", parts=ups, rows=(inner,) * 2 * count, width=hidden, experts=count),
        Slot(name=f"{name}.down", parts=downs, rows=(hidden,) * count, width=inner, experts=count),
    ]
    if arch.router_bias:
        bias = theirs + "gate.e_score_correction_bias"
        found.append(Slot(name=f"{name}.router.bias", parts=(bias,), rows=(count,)))
    if arch.num_shared_experts:
        shared = theirs + ("shared_expert." if arch.shared_expert_gate else "shared_experts.")
        inner *= arch.num_shared_experts
        pair = (f"{shared}gate_proj.weight", f"{shared}up_proj.weight")
        found += [
            Slot(name=f"{name}.shared_up.weight", parts=pair, rows=(inner,) * 2, width=hidden),
            Slot(
                name=f"{name}.shared_down.weight",
                parts=(f"{shared}down_proj.weight",),
                rows=(hidden,),
                width=inner,
            ),
        ]
    if arch.shared_expert_gate:
        direction = theirs + "shared_expert_gate.weight"
        found.append(
            Slot(name=f"{name}.shared_gate.weight", parts=(direction,), rows=(1,), width=hidden)
        )
    return found
