"""How Hugging Face names and lays out the tensors of the models that `nn.transformer` builds."""

from dataclasses import dataclass

from steelyard.catalog.architecture import Architecture

__all__ = ["Slot", "slots"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One parameter of ours and the stored tensors it is made of.

    Attributes:
        name: name in `Transformer.state_dict()`.
        parts: stored names, stacked row after row.
        rows: rows of each part.
        width: columns, 0 for a vector.
        transposed: stored with inputs as rows (GPT-2's Conv1D), so that parts lie side by side.
    """

    name: str
    parts: tuple[str, ...]
    rows: tuple[int, ...]
    width: int = 0
    transposed: bool = False

    @property
    def is_matrix(self) -> bool:
        """Whether it is a linear map's, or the table of tokens."""
        return self.width > 0 and not self.name.startswith("position_embedding")


def slots(arch: Architecture, model_type: str) -> list[Slot]:
    """List where each parameter of a decoder is stored.

    Args:
        arch: what `nn.transformer` can build.
        model_type: "gpt2", "opt", or any whose tensors are named like Llama's.

    Returns:
        One slot per parameter of the model.

    Source: module names of the `transformers` classes LlamaForCausalLM, Gemma2ForCausalLM,
    Olmo2ForCausalLM, Phi3ForCausalLM, GPT2LMHeadModel and OPTForCausalLM.
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
        for name, stored, kind in inside:
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
        "out": ((hidden,), queries, arch.output_bias),
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
