"""Towers from folders of sentence-transformers: BERT-like encoders with pooling, never pickles."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from steelyard.catalog import Architecture
from steelyard.catalog.huggingface import read_architecture
from steelyard.errors import ConfigError, DataError
from steelyard.files import is_inside, read_json
from steelyard.nn.mapped import Weights
from steelyard.nn.own_folder import INDEX, WEIGHTS
from steelyard.nn.towers import Pooling, Tower
from steelyard.nn.transformer import Transformer
from steelyard.retrieve.towers.encoder import TowerEncoder

__all__ = ["import_sentence_transformer"]

_POOLINGS: dict[str, Pooling] = {"mean_tokens": "mean", "cls_token": "first", "lasttoken": "last"}
_UNREAD = ("position_ids", "pooler.")
"""Beginnings of tensors that vectors of sentences do not come from."""
_OUTSIDE = {
    "embedding.weight": "embeddings.word_embeddings.weight",
    "embedding_norm.weight": "embeddings.LayerNorm.weight",
    "embedding_norm.bias": "embeddings.LayerNorm.bias",
}
_INSIDE = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "out": ("attention.output.dense",),
    "attention_sum_norm": ("attention.output.LayerNorm",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
    "mlp_sum_norm": ("output.LayerNorm",),
}
"""Parts of a layer, and what each is stacked from, by the names of BERT."""


def import_sentence_transformer(
    folder: Path | str, *, max_tokens: int | None = None
) -> TowerEncoder:
    """Read an encoder from a folder that sentence-transformers saved.

    Args:
        folder: holds `modules.json`, a BERT-like model with safetensors, and `tokenizer.json`.
        max_tokens: tokens that longer texts are cut to; as the folder says where none is given.

    Returns:
        The encoder. Its vectors are of unit length, whether or not the folder normalizes them:
        scores are cosines.

    Raises:
        DataError: the folder, a file or a tensor is missing, left over or of another shape.
        ConfigError: modules, pooling or a model that no tower has.
        CatalogError: `config.json` cannot be read as an architecture.

    Source: Reimers and Gurevych 2019 (Sentence-BERT, arXiv 1908.10084).
    """
    folder = Path(folder)
    modules = _modules(folder)
    inner = folder / modules["Transformer"]
    values = read_json(inner / "config.json")
    if not isinstance(values, dict) or values.get("model_type") != "bert":
        kind = values.get("model_type") if isinstance(values, dict) else None
        raise ConfigError(
            f"{inner / 'config.json'}: model_type {kind!r} is no tower's",
            hint="folders around models of type 'bert' can be read",
        )
    read = read_architecture(values, str(inner / "config.json"), folder.resolve().name)
    # Sentences are of the first token type: its row is added to all positions. The activation is
    # the exact one here.
    arch = replace(read, num_token_types=0, pooler=False, mlp="gelu-erf")
    model = Transformer(arch)
    _fill(model, dict(_state(arch, Weights(inner, WEIGHTS, INDEX), inner)), inner)
    tower = Tower(model, arch.hidden_size, pooling=_pooling(folder / modules["Pooling"]))
    with torch.no_grad():
        tower.projection.copy_(torch.eye(arch.hidden_size))
    longest = max_tokens or _max_tokens(inner, arch)
    return TowerEncoder(tower.eval(), _tokenizer(inner, longest), max_tokens=longest)


def _fill(model: Transformer, state: dict[str, Tensor], folder: Path) -> None:
    """Copy parameters into a model; those of another shape are refused."""
    for name, part in model.state_dict().items():
        if state[name].shape != part.shape:
            raise DataError(
                f"{folder}: {name} is {list(state[name].shape)}, config.json asks for "
                f"{list(part.shape)}",
                hint="config.json and weights must belong to the same model",
            )
    model.load_state_dict(state)


def _modules(folder: Path) -> dict[str, str]:
    """Return the folder of each module by its kind; others than towers have are refused."""
    listed = read_json(folder / "modules.json")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise DataError(f"{folder / 'modules.json'} lists no modules", hint="save the model again")
    found = {str(one.get("type")).rsplit(".", 1)[-1]: str(one.get("path", "")) for one in listed}
    wrong = [kind for kind in found if kind not in ("Transformer", "Pooling", "Normalize")]
    missing = [kind for kind in ("Transformer", "Pooling") if kind not in found]
    if wrong or missing or len(found) != len(listed):
        raise ConfigError(
            f"{folder / 'modules.json'} has modules {', '.join(found)}",
            hint="a tower is a Transformer, a Pooling and at most a Normalize",
        )
    for kind, name in found.items():
        if not is_inside(folder, name):
            raise DataError(f"{folder / 'modules.json'}: {kind} lies outside the folder: {name}")
    return found


def _pooling(folder: Path) -> Pooling:
    """Return what is taken of a text's states."""
    where = folder / "config.json"
    values = read_json(where)
    modes = [
        name.removeprefix("pooling_mode_")
        for name, is_on in values.items()
        if name.startswith("pooling_mode_") and is_on is True
    ]
    # Newer files name the mode instead of switching one of many on.
    if isinstance(values.get("pooling_mode"), str):
        modes = [{"mean": "mean_tokens", "cls": "cls_token"}.get(values["pooling_mode"], "other")]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ConfigError(
            f"{where}: pooling {', '.join(modes) or 'none'}",
            hint=f"a tower pools by one of {', '.join(_POOLINGS)}",
        )
    return _POOLINGS[modes[0]]


def _max_tokens(folder: Path, arch: Architecture) -> int:
    """Return tokens that texts are cut to."""
    where = folder / "sentence_bert_config.json"
    said = read_json(where).get("max_seq_length") if where.is_file() else None
    return min(int(said), arch.max_positions) if said else arch.max_positions


def _tokenizer(folder: Path, longest: int) -> Tokenizer:
    """Read the tokenizer; texts keep their end token where they are cut, and get no padding."""
    where = folder / "tokenizer.json"
    if not where.is_file():
        raise DataError(f"{where} is missing", hint="save the model with its fast tokenizer")
    try:
        tokenizer = Tokenizer.from_file(str(where))
    except Exception as error:  # the library raises plain Exceptions for broken files
        raise DataError(f"{where} is no tokenizer: {error}", hint="save it again") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    return tokenizer


def _state(arch: Architecture, weights: Weights, folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of our encoder by name."""
    prefix = "bert." if any(name.startswith("bert.") for name in weights.files) else ""
    left = {name for name in weights.files if name.startswith(prefix)}

    def read(name: str) -> Tensor:
        full = prefix + name
        if full not in weights.files:
            raise DataError(
                f"{folder}: tensor {full} is missing", hint="fetch or save the model again"
            )
        left.discard(full)
        return weights.files[full].read(full).float()

    for ours, theirs in _OUTSIDE.items():
        yield ours, read(theirs)
    positions = read("embeddings.position_embeddings.weight")
    yield "position_embedding.weight", positions + _first_type(read)
    for layer in range(arch.num_layers):
        for ours, parts in _INSIDE.items():
            for kind in ("weight", "bias"):
                rows = [read(f"encoder.layer.{layer}.{part}.{kind}") for part in parts]
                yield f"layers.{layer}.{ours}.{kind}", torch.cat(rows).clone()
    extra = [name for name in sorted(left) if not any(part in name for part in _UNREAD)]
    if extra:
        raise DataError(
            f"{folder}: {len(extra)} tensors are not the model's, such as {extra[0]}",
            hint="config.json and weights must belong to the same model",
        )


def _first_type(read: Any) -> Tensor:
    """Return the row of the first token type."""
    return read("embeddings.token_type_embeddings.weight")[0]
