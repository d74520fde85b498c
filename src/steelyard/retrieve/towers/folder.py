"""Folders of encoders: a tower, its tokenizer, and which documents it is for."""

from pathlib import Path

from tokenizers import Tokenizer

from steelyard.errors import DataError
from steelyard.files import read_json, write_bytes, write_json
from steelyard.nn.towers import load_tower, save_tower
from steelyard.retrieve.towers.encoder import QueryEncoder, TowerEncoder
from steelyard.retrieve.towers.imported import import_sentence_transformer

__all__ = ["load_encoder", "save_encoder"]

_ABOUT, _TOKENS = "encoder.json", "tokenizer.json"


def save_encoder(encoder: TowerEncoder | QueryEncoder, folder: Path) -> None:
    """Write an encoder to a folder.

    Args:
        encoder: an encoder; one of queries keeps which documents it is for.
        folder: made if missing; an earlier encoder there is replaced.

    Raises:
        CapacityError: the disk is full.
    """
    inner = encoder.encoder if isinstance(encoder, QueryEncoder) else encoder
    folder.mkdir(parents=True, exist_ok=True)
    # The description comes last: a folder without it is no encoder.
    (folder / _ABOUT).unlink(missing_ok=True)
    save_tower(inner.tower, folder)
    write_bytes(folder / _TOKENS, inner.tokenizer.to_str().encode())
    about = {
        "max_tokens": inner.max_tokens,
        "fingerprint": inner.fingerprint,
        "documents": encoder.fingerprint,
    }
    write_json(folder / _ABOUT, about)


def load_encoder(folder: Path) -> TowerEncoder | QueryEncoder:
    """Read an encoder.

    Args:
        folder: what `save_encoder` wrote, or a folder of sentence-transformers.

    Returns:
        The encoder; one that was saved as of queries comes back as such.

    Raises:
        DataError: the folder holds no whole encoder, or weights of another one.
        ConfigError: a folder of sentence-transformers with what no tower has.
    """
    if not (folder / _ABOUT).is_file():
        if (folder / "modules.json").is_file():
            return import_sentence_transformer(folder)
        raise DataError(
            f"{folder} holds no encoder",
            hint="write one by `steelyard retrieve towers train`, or give a folder of "
            "sentence-transformers",
        )
    about = read_json(folder / _ABOUT)
    tokenizer = Tokenizer.from_file(str(folder / _TOKENS))
    found = TowerEncoder(load_tower(folder), tokenizer, max_tokens=int(about["max_tokens"]))
    if found.fingerprint != about["fingerprint"]:
        raise DataError(
            f"{folder} holds encoder {found.fingerprint}, {_ABOUT} says {about['fingerprint']}",
            hint="weights and description belong to different encoders: write it again",
        )
    if about["documents"] != about["fingerprint"]:
        return QueryEncoder(found, about["documents"])
    return found
