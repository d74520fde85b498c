"""A byte-level BPE tokenizer, trained on the text it will cut."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from steelyard.errors import DataError

__all__ = ["END_OF_TEXT", "MIN_VOCABULARY", "load_tokenizer", "train_tokenizer"]

END_OF_TEXT = "<|endoftext|>"
"""Stands between documents; its id is 0."""

MIN_VOCABULARY = 257
"""All bytes and the end of text."""


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE; the same documents give the same tokenizer.

    Every text can be cut and joined again exactly, because each byte has a token.

    Args:
        documents: training text.
        vocab_size: most tokens, the end of text included; little text may yield fewer.

    Returns:
        The tokenizer.

    Source: Radford et al. 2019 (GPT-2), section 2.2 (byte-level BPE).
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_tokenizer(directory: Path | str) -> Tokenizer:
    """Load the tokenizer of a folder of token shards.

    The text "<|endoftext|>" is cut like any other text, so that a document cannot end itself.

    Args:
        directory: holds `tokenizer.json`.

    Returns:
        The tokenizer.

    Raises:
        DataError: the file is missing or cannot be read.
    """
    path = Path(directory) / "tokenizer.json"
    if not path.is_file():
        raise DataError(
            f"no such file: {path}", hint="make the folder with: steelyard data prepare"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise DataError(
            f"{path} is not a tokenizer: {error}",
            hint=f"delete the folder {path.parent} and prepare it again",
        ) from error
    tokenizer.encode_special_tokens = True
    return tokenizer
