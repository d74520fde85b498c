"""The fields of a Hugging Face `config.json`, read with errors that name the file and the field."""

from typing import Any

from steelyard.errors import CatalogError

__all__ = ["ConfigFields"]

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            "add_cross_attention",
            "alibi",
            "attention_bias",
            "mlp_bias",
            "parallel_attn",
            "qk_layernorm",
            "scale_attn_by_inverse_layer_idx",
            "use_bidirectional_attention",
            "use_parallel_residual",
            "use_qk_norm",
            "use_sliding_window",
        ),
        (False, None),
    ),
    **dict.fromkeys(
        (
            "attention_chunk_size",
            "attn_logit_softcapping",
            "clip_qkv",
            "final_logit_softcapping",
            "kv_lora_rank",
            "n_routed_experts",
            "num_experts",
            "num_local_experts",
            "query_pre_attn_scalar",
            "sliding_window",
        ),
        (None, 0),
    ),
    **dict.fromkeys(
        (
            "attention_multiplier",
            "embedding_multiplier",
            "logit_scale",
            "logits_scaling",
            "partial_rotary_factor",
            "residual_multiplier",
            "rotary_pct",
        ),
        (None, 1),
    ),
    **dict.fromkeys(("no_rope_layers", "cross_attention_layers"), (None, [])),
    **dict.fromkeys(
        ("enable_bias", "layer_norm_elementwise_affine", "scale_attn_weights"), (True,)
    ),
}
"""Fields that change what a model computes, with the values that mean the model lacks the trait."""


class ConfigFields:
    """A config.json; remembers which fields were asked for.

    Attributes:
        values: the parsed file.
        where: the file, for messages.
    """

    def __init__(self, values: dict[str, Any], where: str) -> None:
        """Keep the values.

        Args:
            values: the parsed file.
            where: the file, for messages.
        """
        self.values = values
        self.where = where
        self._asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field as it is."""
        self._asked.add(name)
        return self.values.get(name, default)

    def number(self, *names: str, default: int | None = None) -> int:
        """Return the first integer field present among `names`.

        Args:
            *names: fields, the usual one first.
            default: value where none is there.

        Returns:
            The number.

        Raises:
            CatalogError: none is there and there is no default, or it is no whole number.
        """
        present = [name for name in names if self.get(name) is not None]
        if present:
            return self._typed(present[0], int, "a whole number")
        if default is None:
            raise CatalogError(
                f"{self.where}: field {names[0]!r} is missing",
                hint="give the model's complete config.json",
            )
        return default

    def real(self, name: str, default: float) -> float:
        """Return a field that is a number; null stands for the default."""
        value = self.get(name)
        return default if value is None else float(self._typed(name, int | float, "a number"))

    def flag(self, name: str, default: bool) -> bool:
        """Return a field that is true or false."""
        return self._typed(name, bool, "true or false", default)

    def only(self, name: str, allowed: tuple[Any, ...]) -> Any:
        """Return a field that may have few values.

        Args:
            name: field.
            allowed: its values, the default first.

        Returns:
            The value.

        Raises:
            CatalogError: it has another value.
        """
        value = self.get(name, allowed[0])
        if value not in allowed:
            raise CatalogError(
                f"{self.where}: {name} = {value!r} is not supported",
                hint=f"supported: {', '.join(map(repr, allowed))}",
            )
        return value

    def period(self, name: str, marked: list[bool]) -> int:
        """Return n where every n-th layer is marked and no other; 0 where none is.

        Args:
            name: field that says so, for the message.
            marked: whether the file marks each layer.

        Returns:
            The number n.

        Raises:
            CatalogError: the marks follow no such rule.
        """
        if True not in marked:
            return 0
        period = marked.index(True) + 1
        if any(mark != ((layer + 1) % period == 0) for layer, mark in enumerate(marked)):
            layers = [layer for layer, mark in enumerate(marked) if mark]
            raise CatalogError(
                f"{self.where}: {name} sets layers {layers} apart, which is not every n-th layer",
                hint="models whose layers differ in another way are not supported",
            )
        return period

    def rope(self, layer_type: str = "full_attention") -> "ConfigFields":
        """Return the fields of the rotary positions of a type of layer, in either form of the file.

        Older files have `rope_theta` beside `rope_scaling`, newer ones `rope_parameters`, which may
        hold one table for each type of layer.

        Args:
            layer_type: type of layer.

        Returns:
            The fields of one table, `rope_theta` and what stands beside the table included.

        Raises:
            CatalogError: they are no table.
        """
        found = self.get("rope_scaling") or self.get("rope_parameters") or {}
        if isinstance(found, dict) and isinstance(found.get(layer_type), dict):
            found = found[layer_type]
        if not isinstance(found, dict):
            raise CatalogError(
                f"{self.where}: the rotary scaling is {found!r}, not a table",
                hint="give the model's complete config.json",
            )
        nested = self.get("rope_parameters")
        theta = nested.get("rope_theta") if isinstance(nested, dict) else None
        beside = {name: self.get(name) for name in ("rope_theta", "partial_rotary_factor")}
        # Phi-3 has this one beside the table too; there it is the one that counts.
        last = {"original_max_position_embeddings": self.get("original_max_position_embeddings")}
        parts = (beside, {"rope_theta": theta}, found, last)
        present = {
            name: value for part in parts for name, value in part.items() if value is not None
        }
        return ConfigFields(present, self.where)

    def refuse_unread(self) -> None:
        """Refuse a file with a trait that nobody asked for.

        Raises:
            CatalogError: names the first such field.
        """
        kinds = self.values.get("layer_types")
        if "layer_types" not in self._asked and set(kinds or ()) - {"full_attention"}:
            self._refuse("layer_types", sorted(set(kinds or ())))
        for name, neutral in _NEUTRAL.items():
            if name in self.values and name not in self._asked:
                value = self.values[name]
                if value not in neutral:
                    self._refuse(name, value)

    def _refuse(self, name: str, value: Any) -> None:
        """Refuse a trait."""
        kind = self.values.get("model_type")
        raise CatalogError(
            f"{self.where}: {name} = {value!r} is not supported in a model of type {kind!r}",
            hint="models with this trait cannot be read",
        )

    def _typed(self, name: str, kind: Any, words: str, default: Any = None) -> Any:
        """Return a field of a kind; JSON's true and false are no numbers, though Python's are."""
        value = self.get(name, default)
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise CatalogError(f"{self.where}: field {name!r} is {value!r}, not {words}")
        return value
