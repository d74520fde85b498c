"""Read and write models as Hugging Face folders: `config.json` and safetensors, never pickles."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steelyard.catalog import Architecture, to_huggingface
from steelyard.catalog.huggingface import read_architecture, text_values
from steelyard.errors import CatalogError, ConfigError, DataError
from steelyard.files import read_json, sha256_file, write_json
from steelyard.nn.encoder_decoder import EncoderDecoder
from steelyard.nn.gguf.model import load_gguf
from steelyard.nn.hashes import HASHES, check_hashes, identity_of
from steelyard.nn.mapped import DTYPES, Weights, write_tensors
from steelyard.nn.moe.separate import keep_experts
from steelyard.nn.names import slots
from steelyard.nn.own_folder import (
    INDEX,
    OWN_TYPE,
    WEIGHTS,
    fill_from,
    own_architecture,
    own_config,
    own_state,
)
from steelyard.nn.quantized.folder import replace_packed
from steelyard.nn.rotary import RotaryScaling
from steelyard.nn.rotary_config import read_scaling, scaling_fields, within_factors
from steelyard.nn.slot import Slot, copied, matrices, split, stored_shape, view_of
from steelyard.nn.stored import keep_stored as place_stored
from steelyard.nn.traits import unserved_traits
from steelyard.nn.transformer import Transformer

__all__ = ["finish_folder", "load", "save", "shard_names"]

_BUFFERS = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")
"""Endings of tensors that older files hold beside the weights and that follow from the
configuration."""
MODEL_TYPES = (
    "deepseek_v2",
    "deepseek_v3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gpt2",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "opt",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
)
_VISION = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_")
"""Beginnings of tensors of the picture half of a multimodal model, which is not read."""


def load(
    directory: Path | str,
    *,
    dtype: torch.dtype | None = torch.float32,
    device: torch.device | str = "cpu",
    max_positions: int | None = None,
    is_checked: bool = False,
    keep_stored: bool = False,
) -> Transformer:
    """Load a model from a Hugging Face folder or a GGUF file.

    The files are mapped into memory. On the CPU, parameters of the stored type are views of the map
    wherever their parts follow each other in a file; the others are copied, and the pages behind
    them let go, so that memory holds the weights once. Weights that GPTQ, AWQ or compressed-tensors
    stored in 4 or 8 bits are unpacked into `dtype`. Writing to a parameter changes memory, never
    the file. A folder that `save` wrote carries hashes, which are checked.

    Args:
        directory: folder that holds `config.json` and `model.safetensors`, or the shards named in
            `model.safetensors.index.json`; or a GGUF file, see `nn.gguf.model.load_gguf`.
        dtype: type of all parameters; None for the type that most of the stored bytes have.
        device: device of all parameters.
        max_positions: longest sequence that will be run. It matters only where rotary factors
            differ with it (Phi-3 for 128K): beyond the length trained first the model takes its
            long factors, for short sequences too; otherwise, and by default, it takes the short
            ones and ends at that length.
        is_checked: whether the caller has compared the hashes already.
        keep_stored: whether the model is packed once, on the CPU: matrices that are no views of
            their files stay there as `nn.stored` modules, with the codes they have, and what was
            packed may be kept under the files' identity: change no weight. `dtype` None is then
            float32 but where most bytes are bfloat16.

    Returns:
        The model, in evaluation mode.

    Raises:
        DataError: the folder, a file or a tensor is missing, truncated, malformed or left over, a
            tensor has another shape, or a hash differs; each is named.
        ConfigError: the model has a trait `nn.transformer` does not have.
        CatalogError: `config.json` cannot be read as an architecture.
    """
    directory = Path(directory)
    if directory.is_file():
        return load_gguf(
            directory,
            dtype=dtype,
            device=device,
            max_positions=max_positions,
            keep_stored=keep_stored,
        )
    config = _config(directory)
    if isinstance(config, dict) and config.get("model_type") == OWN_TYPE:
        return _load_own(config, directory, dtype, is_checked).to(device=device).eval()
    arch, scaling = _architecture(config, directory, max_positions)
    if not is_checked:
        check_hashes(directory)
    weights = Weights(directory, WEIGHTS, INDEX)
    if config.get("quantization_config"):
        replace_packed(weights, config["quantization_config"], directory)
    found = _named_as_stored(slots(arch, config["model_type"]), weights)
    _refuse_mismatch(found, weights, arch, directory, _unread(config, arch))
    kept = dtype or _main_dtype(found, weights)
    if keep_stored and dtype is None and kept != torch.bfloat16:
        kept = torch.float32
    model = Transformer(arch, scaling)
    state: dict[str, Tensor] = {}
    with torch.no_grad():
        for slot in found:
            if keep_stored and slot.experts:
                keep_experts(model, slot.name, matrices(slot, weights), kept)
                continue
            view = view_of(slot, weights, kept)
            if view is None and keep_stored and slot.is_matrix:
                place_stored(model, slot.name, matrices(slot, weights), kept)
            else:
                state[slot.name] = copied(slot, weights, kept) if view is None else view
        model.load_state_dict(state, assign=True)
    model.identity = identity_of(directory) if keep_stored else ""
    return model.to(device=device).eval()


def _config(directory: Path) -> Any:
    """Read the configuration of a folder; one that is not there is refused."""
    if not directory.is_dir():
        raise DataError(
            f"no such folder: {directory}",
            hint="give a folder with config.json and model.safetensors",
        )
    return read_json(directory / "config.json")


def _load_own(
    config: dict[str, Any], directory: Path, dtype: torch.dtype | None, is_checked: bool
) -> Transformer:
    """Load a folder in this package's own layout."""
    arch = own_architecture(config, directory)
    if not is_checked:
        check_hashes(directory)
    model = Transformer(arch)
    fill_from(model, Weights(directory, WEIGHTS, INDEX), directory, dtype)
    return model


def save(
    model: Transformer | EncoderDecoder,
    directory: Path | str,
    *,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Save a model as a Hugging Face folder that `transformers` and `load` read.

    A model with a trait that `nn.traits.unserved_traits` names, or with experts as no Hugging Face
    class has them, is saved in this package's own layout, which `load` alone reads. Each file is
    written beside and renamed; the hashes come last.

    Args:
        model: model of `nn.transformer` or `nn.encoder_decoder`.
        directory: folder to write; made if missing, and files of an earlier save are replaced.
        max_shard_bytes: weights beyond it are split into several files with an index.

    Raises:
        CatalogError: no Hugging Face class has the shape of a dense architecture.
        CapacityError: the disk is full.
    """
    directory = Path(directory)
    config, tensors = _stored_form(model)
    shards = _shards(tensors, max_shard_bytes)
    # Stale files go first: shards of an earlier save beside new ones would be read as this model's.
    for stale in (*directory.glob("*.safetensors"), directory / INDEX, directory / HASHES):
        stale.unlink(missing_ok=True)
    for name, shard in shards.items():
        write_tensors(directory / name, shard, {"format": "pt"})
    places = {part: name for name, shard in shards.items() for part in shard}
    total = sum(tensor.nbytes for tensor in tensors.values())
    finish_folder(directory, config, places, total)


def _stored_form(model: Transformer | EncoderDecoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the tensors of a folder."""
    arch = model.architecture
    if isinstance(model, EncoderDecoder) or unserved_traits(arch):
        return own_config(arch), own_state(model)
    state = model.state_dict()
    try:
        exported = to_huggingface(arch)
    except CatalogError:
        if not (arch.num_experts or arch.kv_lora_rank):
            raise
        return own_config(arch), own_state(model)
    config = exported | {
        "_name_or_path": arch.name,
        "torch_dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
    }
    config |= scaling_fields(model.scaling) if model.scaling else {}
    tensors = {
        part: tensor
        for slot in slots(arch, config["model_type"])
        for part, tensor in split(slot, state[slot.name])
    }
    return config, tensors


def finish_folder(
    directory: Path, config: dict[str, Any], places: dict[str, str], total_bytes: int
) -> None:
    """Write what stands beside the weights of a folder: configuration, index, and hashes last.

    Args:
        directory: the folder, with its weight files.
        config: content of `config.json`.
        places: file of each tensor.
        total_bytes: bytes of all tensors.
    """
    files = sorted(set(places.values()))
    if len(files) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": places}
        write_json(directory / INDEX, index)
    write_json(directory / "config.json", config)
    hashes = {name: sha256_file(directory / name) for name in (*files, "config.json")}
    write_json(directory / HASHES, {"sha256": hashes})


def _architecture(
    config: Any, directory: Path, max_positions: int | None
) -> tuple[Architecture, RotaryScaling | None]:
    """Read the architecture and its rotary scaling.

    What would load but compute something else is refused.
    """
    where = directory / "config.json"
    if not isinstance(config, dict) or config.get("model_type") not in MODEL_TYPES:
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise ConfigError(
            f"{where}: model_type {kind!r} cannot be loaded",
            hint=f"models that can: {', '.join(MODEL_TYPES)}",
        )
    if config.get("activation_function") == "gelu":
        raise ConfigError(
            f"{where}: activation_function 'gelu' is not supported",
            hint="supported: 'gelu_new', its tanh form",
        )
    values = text_values(config)
    arch = read_architecture(values, str(where), directory.resolve().name)
    scaling = read_scaling(values, str(where), arch.turned_dim)
    return within_factors(arch, scaling, max_positions, str(where)), scaling


def _unread(config: dict[str, Any], arch: Architecture) -> tuple[str, ...]:
    """Return how tensors begin that a folder has besides those of the text model."""
    if config.get("num_nextn_predict_layers"):
        # DeepSeek-V3 keeps what predicts a second token as one more layer.
        return (f"model.layers.{arch.num_layers}.",)
    return _VISION if config["model_type"] == "gemma3" else ()


def _named_as_stored(found: list[Slot], weights: Weights) -> list[Slot]:
    """Return the slots under the names that the folder uses."""
    first = found[0].parts[0]
    prefix = first.partition(".")[0] + "."
    # A model saved without its head has no leading "model." or "transformer."; the text half of a
    # multimodal one has another.
    starts = (prefix, "language_model." + prefix, prefix + "language_model.", "")
    start = next((one for one in starts if one + first.removeprefix(prefix) in weights.files), None)
    if start is None:  # some tensors are missing; `_refuse_mismatch` will name them
        start = prefix if any(name.startswith(prefix) for name in weights.files) else ""
    before_head = "language_model." if start == "language_model." + prefix else ""
    return [
        dataclasses.replace(
            slot,
            parts=tuple(
                start + part.removeprefix(prefix) if part.startswith(prefix) else before_head + part
                for part in slot.parts
            ),
        )
        for slot in found
    ]


def _refuse_mismatch(
    found: list[Slot],
    weights: Weights,
    arch: Architecture,
    directory: Path,
    unread: tuple[str, ...],
) -> None:
    """Refuse a folder whose tensors are not just the model's, in number, shape and type.

    Those that begin with a word of `unread` may be there besides.
    """
    parts = {
        part: stored_shape(slot, rows)
        for slot in found
        for part, rows in zip(slot.parts, slot.rows, strict=True)
    }
    hint = "config.json and weights must belong to the same model"
    missing = [part for part in parts if part not in weights.files]
    if missing:
        raise DataError(f"{directory}: missing tensors: {_shown(missing)}", hint=hint)
    for part, shape in parts.items():
        entry = weights.entry(part)
        if entry.shape != shape:
            message = (
                f"{directory}: tensor {part} has shape {list(entry.shape)}, but config.json "
                f"asks for {list(shape)}"
            )
            raise DataError(message, hint=hint)
        if entry.dtype not in DTYPES:
            raise DataError(
                f"{directory}: tensor {part} is of type {entry.dtype}",
                hint=f"types that can be read: {', '.join(DTYPES)}",
            )
    unused = ("lm_head.weight",) if arch.tied_embeddings else ()
    left = [
        name
        for name in weights.files
        if name not in parts
        and not name.endswith((*_BUFFERS, *unused))
        and not name.startswith(unread)
    ]
    if left:
        raise DataError(
            f"{directory}: tensors that the model does not have: {_shown(left)}", hint=hint
        )


def _shown(names: list[str]) -> str:
    """Return the first names of a list."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _main_dtype(found: list[Slot], weights: Weights) -> torch.dtype:
    """Return the type that most of the model's bytes have."""
    sizes: Counter[str] = Counter()
    for part in (part for slot in found for part in slot.parts):
        entry = weights.entry(part)
        sizes[entry.dtype] += entry.stop - entry.start
    return DTYPES[sizes.most_common(1)[0][0]]


def _shards(tensors: dict[str, Tensor], max_bytes: int) -> dict[str, dict[str, Tensor]]:
    """Cut tensors into files of at most `max_bytes`, or of one tensor that is larger."""
    groups: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        used = sum(other.nbytes for other in groups[-1].values())
        if used and used + tensor.nbytes > max_bytes:
            groups.append({})
        groups[-1][name] = tensor
    return dict(zip(shard_names(len(groups)), groups, strict=True))


def shard_names(count: int) -> list[str]:
    """Return the names of so many files of weights, as `load` looks for them."""
    if count == 1:
        return [WEIGHTS]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
