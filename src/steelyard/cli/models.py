"""Which model the user means: a folder of weights, what a quickstart or a run made, or its name."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from steelyard.runs.record import RunRecord

__all__ = ["FoundModel", "find_model", "model_folder"]


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model on disk.

    Attributes:
        folder: folder with config.json, or a GGUF file.
        names: what it is called: its own name first, then the id of the run that made it.
    """

    folder: Path
    names: tuple[str, ...]


def find_model(text: str, *, or_address: bool = False) -> FoundModel:
    """Find a model by what the user typed.

    Args:
        text: a folder with config.json; a GGUF file; the folder that `steelyard quickstart` or
            `steelyard train` wrote; or a run's name, its id, or a unique beginning of the id.
        or_address: whether the text could have been a server's address; for the error alone.

    Returns:
        The model and its names.

    Raises:
        ConfigError: the folder holds no model, or the run made none.
        StoreError: neither a folder nor a run has this name, or several runs have.
    """
    from steelyard.nn.gguf.header import is_gguf

    folder = Path(text).expanduser()
    if folder.is_dir():
        return _in_folder(folder, text)
    if is_gguf(folder):
        return FoundModel(folder, (folder.stem,))
    if folder.exists() or "/" in text:
        raise ConfigError(
            f"{text} is no model folder: "
            + ("it is a file, and not GGUF" if folder.exists() else "there is no such folder"),
            hint="name the folder a model was saved in, a .gguf file, or a run's id",
        )
    kinds = "neither an address, a model folder" if or_address else "neither a model folder"
    record = _run(text, f"{text!r} is {kinds} nor a run")
    places = [item.path if item.path.is_dir() else item.path.parent for item in record.artifacts]
    for place in [*places, record.directory]:
        if (place / "config.json").is_file() and any(place.glob("*.safetensors")):
            return FoundModel(place, tuple(dict.fromkeys((record.name or record.id, record.id))))
    raise ConfigError(
        f"run {record.id} ({record.kind}) has no checkpoint among its artifacts",
        hint=f"`steelyard runs show {record.id}` lists them",
    )


def model_folder(text: str) -> Path:
    """Find the folder of a model, or its GGUF file; see `find_model`."""
    return find_model(text).folder


def _in_folder(folder: Path, text: str) -> FoundModel:
    """Return the model in a folder, or in that of a quickstart or a training run."""
    from steelyard.weigh.settings import kept_run, target_model

    name = folder.resolve().name
    run = kept_run(folder)
    names = (name, run) if run else (name,)
    # A training run's folder has a config.json too, that of the training; its model lies deeper.
    if (folder / "config.json").is_file() and not (folder / "model" / "config.json").is_file():
        return FoundModel(folder, (name,))
    if (target_model(folder) / "config.json").is_file():
        return FoundModel(target_model(folder), names)
    if (folder / "model" / "config.json").is_file():
        return FoundModel(folder / "model", names)
    if runs := [item.parents[1] for item in folder.glob("*/*/model/config.json")]:
        # Six digits each: of the runs of one model the last name is the longest's.
        largest = max(runs, key=lambda run: (_bytes(run / "model"), run.name != "trunk", run.name))
        raise ConfigError(
            f"{text} holds the {len(runs)} runs of a study, each a model of its own",
            hint=f"name one of them, such as {largest}",
        )
    if (folder / "stages").is_dir():
        raise ConfigError(
            f"the quickstart in {text} has not trained its larger model yet: no config.json in "
            f"{target_model(folder)}",
            hint=f"`steelyard quickstart --out {text}` continues it",
        )
    raise ConfigError(
        f"{text} is no model folder: it has no config.json",
        hint="name the folder a model was saved in, one that `steelyard quickstart` wrote, or a "
        "run's id",
    )


def _bytes(folder: Path) -> int:
    """Return the bytes of the weights in a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _run(text: str, message: str) -> "RunRecord":
    """Return the run of an id or a name; the newest of those that have the name."""
    from steelyard.runs.store import RunStore

    looked = f"looked for a folder ./{text} and for a run of that id or name"
    try:
        store = RunStore.existing()
    except StoreError as error:
        raise StoreError(f"{message}: {looked}; {error}", hint=error.hint) from error
    try:
        return store.get(text)
    except StoreError as error:
        records = store.list()
        named = [record for record in records if record.name == text]
        if named:
            return named[0]
        if " runs begin with " in str(error):
            raise
        near = difflib.get_close_matches(text, [item.name for item in records if item.name], n=1)
        hint = f"did you mean {near[0]!r}?" if near else error.hint
        raise StoreError(f"{message}: {looked} in {store.folder}", hint=hint) from error
