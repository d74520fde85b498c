"""Read and write models as Hugging Face folders: `config.json` and safetensors, never pickles."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from steelyard.catalog import Architecture, from_huggingface, to_huggingface
from steelyard.errors import ConfigError, DataError, SteelyardWarning
from steelyard.files import atomic_path, read_json, sha256_file, write_json
from steelyard.nn.names import Slot, slots
from steelyard.nn.transformer import Transformer

__all__ = ["load", "save"]

WEIGHTS, INDEX, HASHES = "model.safetensors", "model.safetensors.index.json", "steelyard.json"
MODEL_TYPES = ("gpt2", "llama", "mistral", "opt", "qwen2", "qwen3")


def load(directory: Path | str, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Transformer:
    """Load a model from a Hugging Face folder.

    Weights are converted to `dtype` on the way. A folder that `save` wrote carries hashes, which are checked.

    Args:
        directory: holds `config.json` and `model.safetensors`, or the shards named in `model.safetensors.index.json`.
        dtype: of all parameters.
        device: where they stand.

    Returns:
        The model, in evaluation mode.

    Raises:
        DataError: the folder, a file or a tensor is missing, a tensor has another shape, or a hash differs; each is named.
        ConfigError: the model has a trait `nn.transformer` does not have.
        CatalogError: `config.json` cannot be read as an architecture.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise DataError(f"no such folder: {directory}", hint="give a folder with config.json and model.safetensors")
    config = read_json(directory / "config.json")
    arch = _architecture(config, directory)
    model = Transformer(arch)
    _check_hashes(directory)
    with contextlib.ExitStack() as stack, torch.no_grad():
        read, known = _open(directory, stack)
        found = slots(arch, config["model_type"])
        if config["model_type"] == "gpt2" and "transformer.wte.weight" not in known:
            found = [dataclasses.replace(slot, parts=tuple(part.removeprefix("transformer.") for part in slot.parts)) for slot in found]
        _refuse_missing(found, known, directory)
        state = model.state_dict()
        for slot in found:
            state[slot.name].copy_(_join(slot, read, directory))
    return model.to(device=device, dtype=dtype).eval()


def save(model: Transformer, directory: Path | str, *, max_shard_bytes: int = 5_000_000_000) -> None:
    """Save a model as a Hugging Face folder that `transformers` and `load` read.

    Each file is written beside and renamed; the hashes come last.

    Args:
        model: any model of `nn.transformer`.
        directory: made if it is missing; files of an earlier save are replaced.
        max_shard_bytes: weights beyond it are split into several files with an index.

    Raises:
        CatalogError: no Hugging Face class has the architecture's shape.
        CapacityError: the disk is full.
    """
    directory, arch = Path(directory), model.architecture
    config = to_huggingface(arch) | {"_name_or_path": arch.name, "torch_dtype": str(model.embedding.weight.dtype).removeprefix("torch.")}
    state = model.state_dict()
    tensors = {part: tensor for slot in slots(arch, config["model_type"]) for part, tensor in _split(slot, state[slot.name])}
    shards = _shards(tensors, max_shard_bytes)
    for stale in (*directory.glob("*.safetensors"), directory / INDEX, directory / HASHES):
        stale.unlink(missing_ok=True)
    for name, shard in shards.items():
        with atomic_path(directory / name) as temporary, _disk_errors():
            save_file(shard, temporary, metadata={"format": "pt"})
    if len(shards) > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        places = {part: name for name, shard in shards.items() for part in shard}
        write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
    write_json(directory / "config.json", config)
    write_json(directory / HASHES, {"sha256": {name: sha256_file(directory / name) for name in (*shards, "config.json")}})


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """Turn the writer's own error about a full disk into the system's, which `atomic_path` understands."""
    try:
        yield
    except SafetensorError as error:
        import errno

        number = next((code for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) if f"os error {code}" in str(error)), errno.EIO)
        raise OSError(number, str(error)) from error


def _architecture(config: Any, directory: Path) -> Architecture:
    """Read the architecture, refusing what would load but compute something else."""
    where = directory / "config.json"
    if not isinstance(config, dict) or config.get("model_type") not in MODEL_TYPES:
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise ConfigError(f"{where}: model_type {kind!r} cannot be loaded", hint=f"models that can: {', '.join(MODEL_TYPES)}")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        raise ConfigError(f"{where}: rotary scaling {kind!r} is not supported", hint="take a model without rope_scaling")
    if config.get("activation_function") == "gelu":
        raise ConfigError(f"{where}: activation_function 'gelu' is not supported", hint="supported: 'gelu_new', its tanh form")
    arch = from_huggingface(config | {"_name_or_path": config.get("_name_or_path") or directory.resolve().name})
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if isinstance(window, int) and window < arch.max_positions:
        warnings.warn(
            f"{where}: sliding attention is exact only within its window, so max_positions is {window}, not {arch.max_positions}",
            SteelyardWarning,
            stacklevel=3,
        )
        arch = dataclasses.replace(arch, max_positions=window)
    return arch


def _check_hashes(directory: Path) -> None:
    """Compare files with the hashes `save` left; folders from elsewhere have none."""
    if not (directory / HASHES).exists():
        return
    for name, expected in read_json(directory / HASHES)["sha256"].items():
        path = directory / name
        if not path.exists():
            raise DataError(f"{path} is missing", hint="save the model again")
        if sha256_file(path) != expected:
            raise DataError(f"{path} is corrupted: its SHA-256 is not the one stored in {HASHES}", hint="save the model again")


def _open(directory: Path, stack: contextlib.ExitStack) -> tuple[Callable[[str], Tensor], set[str]]:
    """Open all weight files; give a reader of tensors by name, and the names."""
    files = [directory / WEIGHTS]
    if not files[0].exists() and (directory / INDEX).exists():
        files = sorted({directory / Path(name).name for name in read_json(directory / INDEX)["weight_map"].values()})
    places = {}
    for path in files:
        if not path.exists():
            raise DataError(f"{path} is missing", hint="only safetensors weights are read; pickled ones are refused")
        try:
            opened = stack.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path} is not a readable safetensors file: {error}", hint="fetch or save it again") from error
        places |= dict.fromkeys(opened.keys(), opened)
    return lambda name: places[name].get_tensor(name), set(places)


def _refuse_missing(found: list[Slot], known: set[str], directory: Path) -> None:
    """Refuse a folder that lacks tensors."""
    missing = [part for slot in found for part in slot.parts if part not in known]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise DataError(f"{directory}: missing tensors: {shown}", hint="config.json and weights must belong to the same model")


def _join(slot: Slot, read: Callable[[str], Tensor], directory: Path) -> Tensor:
    """Read one parameter of ours from the parts it is stored in."""
    parts = []
    for part, rows in zip(slot.parts, slot.rows, strict=True):
        tensor = read(part)
        shape = _stored_shape(slot, rows)
        if tuple(tensor.shape) != shape:
            message = f"{directory}: tensor {part} has shape {list(tensor.shape)}, but config.json asks for {list(shape)}"
            raise DataError(message, hint="config.json and weights must belong to the same model")
        parts.append(tensor.T if slot.transposed else tensor)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _stored_shape(slot: Slot, rows: int) -> tuple[int, ...]:
    """Give the shape in which a part is stored."""
    if not slot.width:
        return (rows,)
    return (slot.width, rows) if slot.transposed else (rows, slot.width)


def _split(slot: Slot, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Give the parts in which a parameter is stored."""
    for part, piece in zip(slot.parts, tensor.split(slot.rows), strict=True):
        yield part, (piece.T if slot.transposed else piece).contiguous()


def _shards(tensors: dict[str, Tensor], max_bytes: int) -> dict[str, dict[str, Tensor]]:
    """Cut tensors into files of at most `max_bytes`, or of one tensor that is larger."""
    groups: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        if groups[-1] and used + tensor.nbytes > max_bytes:
            groups.append({})
            used = 0
        groups[-1][name] = tensor
        used += tensor.nbytes
    if len(groups) == 1:
        return {WEIGHTS: groups[0]}
    return {f"model-{number:05d}-of-{len(groups):05d}.safetensors": group for number, group in enumerate(groups, 1)}
