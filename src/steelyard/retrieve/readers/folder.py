"""Readers from folders of models."""

from pathlib import Path

from tokenizers import Tokenizer

from steelyard.errors import DataError
from steelyard.nn import checkpoint
from steelyard.retrieve.readers.reader import PassageReader

__all__ = ["load_reader"]

_TOKENS = "tokenizer.json"


def load_reader(folder: Path) -> PassageReader:
    """Load a decoder with its tokenizer.

    Args:
        folder: holds `config.json`, safetensors and `tokenizer.json`, as `steelyard train run`
            leaves them.

    Returns:
        The reader.

    Raises:
        DataError: a file is missing or damaged.
        ConfigError: the model is an encoder, or has a trait that is not read.
    """
    model = checkpoint.load(folder)
    path = folder / _TOKENS
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"no {_TOKENS} in {folder}",
            hint="put the tokenizer that the model was trained with there",
        ) from error
    except Exception as error:  # tokenizers raises bare exceptions for damaged files
        raise DataError(f"{path} is no tokenizer: {error}") from error
    return PassageReader(model, tokenizer)
