"""Many texts into a file of vectors, a part at a time, with the encoder named beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.mapped_rows import take_room
from steelyard.data.stages import hash_of
from steelyard.errors import ConfigError, DataError
from steelyard.files import exclusive, read_json, write_json

if TYPE_CHECKING:
    from steelyard.retrieve.datastore.store import PassageEncoder

__all__ = ["encode_file", "require_vectors_of"]

_PART = 1024


def encode_file(encoder: "PassageEncoder", texts: Sequence[str], path: Path) -> int:
    """Write vectors of texts to a .npy file; a call that was killed goes on with its last part.

    Args:
        encoder: turns texts into vectors.
        texts: texts; an empty one becomes a row of zeros, so that rows stay numbers of texts.
        path: the file; beside it stands `NAME.json` with the encoder and the rows.

    Returns:
        How many texts were empty.

    Raises:
        DataError: there is no text.
        StoreError: another process writes this file.
        CapacityError: the disk is full; finished parts stay.
    """
    if not len(texts):
        raise DataError("no text to encode", hint="give a file with texts")
    key = hash_of([encoder.fingerprint, hash_of(list(texts))])
    part = path.with_name(f".{path.name}.parts")
    empty = sum(not text.strip() for text in texts)
    with exclusive(part):
        state = part / "state.json"
        told = read_json(state) if state.is_file() else {}
        done = int(told["done"]) if told.get("key") == key else 0
        shape = (len(texts), encoder.dim)
        rows = _opened(part / "rows.npy", shape, is_new=not done)
        for first in range(done, len(texts), _PART):
            rows[first : first + _PART] = _encoded(encoder, texts[first : first + _PART])
            rows.flush()
            # Rows are on disk before the state counts them: a kill between repeats one part.
            write_json(state, {"key": key, "done": min(first + _PART, len(texts))})
        about = {"encoder": encoder.fingerprint, "rows": len(texts), "empty": empty}
        path.with_name(path.name + ".json").unlink(missing_ok=True)
        (part / "rows.npy").replace(path)
        write_json(path.with_name(path.name + ".json"), about)
        state.unlink()
    for left in part.iterdir():
        left.unlink()
    part.rmdir()
    return empty


def require_vectors_of(path: Path, encoder: "PassageEncoder") -> None:
    """Refuse vectors that another encoder made.

    Args:
        path: file of `encode_file`.
        encoder: the one that asks, or a `QueryEncoder` for its documents.

    Raises:
        DataError: nothing says who made the file.
        ConfigError: another encoder did: scores would mean nothing.
    """
    about = path.with_name(path.name + ".json")
    if not about.is_file():
        raise DataError(
            f"{about} is missing: nothing says which encoder made {path}",
            hint="write it by `steelyard retrieve towers encode`",
        )
    made_by = read_json(about).get("encoder")
    if made_by != encoder.fingerprint:
        raise ConfigError(
            f"{path} was made by encoder {made_by}, this one asks {encoder.fingerprint}",
            hint="encode the documents again with the tower that stands beside this one",
        )


def _opened(path: Path, shape: tuple[int, int], *, is_new: bool) -> np.memmap:
    """Return the rows that are being written."""
    if is_new or not path.is_file():
        made = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
        take_room(path, path.stat().st_size)
        return made
    return np.lib.format.open_memmap(path, mode="r+")


def _encoded(encoder: "PassageEncoder", texts: Sequence[str]) -> np.ndarray:
    """Return vectors, zeros of empty texts."""
    filled = [place for place, text in enumerate(texts) if text.strip()]
    found = np.zeros((len(texts), encoder.dim), np.float32)
    if filled:
        found[filled] = encoder.encode([texts[place] for place in filled])
    return found
