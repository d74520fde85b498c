"""The sequences of a quantization: what codes are fitted to, chosen by and measured on."""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from steelyard.data.sources import default_sources, list_files
from steelyard.errors import ConfigError, DataError
from steelyard.nn.quantizing.stack import Passage
from steelyard.nn.transformer import Transformer
from steelyard.serve.engine import LLM, default_config
from steelyard.serve.front.text import TextCodec
from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["Sequences", "draw_sequences", "read_tokens"]

_LENGTH = 512
_OWN_ROWS = 16
_FEWEST_ROWS = 16
_FEWEST_TO_CHOOSE = 16
_READ_BYTES = 2**26


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """Rows of tokens and what each is for.

    Attributes:
        tokens: int64 [S, T].
        calibration: rows that codes are fitted to.
        choice: rows that the method and the types are chosen by.
        passages: rows that the result is measured on: "text", of the same source, and "own", drawn
            from the model itself; nothing is fitted to them or chosen by them.
    """

    tokens: Tensor
    calibration: slice
    choice: Passage
    passages: dict[str, Passage]


def read_tokens(source: Path | None, folder: Path) -> Tensor:
    """Read text and cut it into tokens.

    Args:
        source: a file or a folder; None for text that every Python installation carries.
        folder: the model, with its tokenizer; without one, text is token ids between spaces.

    Returns:
        int64 [N].

    Raises:
        DataError: there is no text.
        ConfigError: there is no tokenizer, and the text is no list of token ids.
    """
    files = list_files(default_sources() if source is None else [source], _READ_BYTES)
    codec = TextCodec.load(folder)
    found: list[int] = []
    for file in files:
        try:
            found += codec.encode(file.path.read_bytes().decode("utf-8", "replace"))
        except ConfigError as error:  # its hint is for whoever sends a prompt
            raise ConfigError(
                f"{folder} has no tokenizer, and {file.path} is no list of token ids",
                hint="put tokenizer.json into the folder, or give --calibrate a file of token ids "
                "with spaces between them",
            ) from error
    return torch.tensor(found, dtype=torch.int64)


def draw_sequences(
    model: Transformer, text: Tensor, *, calibration_tokens: int, fits: bool, seed: int
) -> Sequences:
    """Cut text into parts, and let the model write some of its own.

    The first three quarters of the text are for calibration, an eighth each to choose and to
    measure by; where there is more than is taken, it is taken evenly. The model's own outputs
    continue the beginnings of measured rows, drawn at temperature 1.

    Args:
        model: a decoder.
        text: int64 [N].
        calibration_tokens: most tokens for calibration; a quarter as many, and at least 16
            rows where there are, are taken to choose by, and half as many to measure.
        fits: whether codes are fitted; nothing is taken for calibration otherwise.
        seed: seed of the outputs.

    Returns:
        Rows of at most 512 tokens.

    Raises:
        DataError: the text is too short, or has tokens that the model does not know.
    """
    arch = model.architecture
    length = min(_LENGTH, arch.max_positions)
    rows = text[: len(text) // length * length].view(-1, length)
    if len(rows) < _FEWEST_ROWS:
        raise DataError(
            f"the text has {len(text)} tokens, and needs at least {_FEWEST_ROWS * length}",
            hint="give more text",
        )
    if int(rows.max()) >= arch.vocab_size or int(rows.min()) < 0:
        raise DataError(
            f"the text has token {int(rows.max())}, and the model knows {arch.vocab_size}",
            hint="give text, or ids of the model's own tokens",
        )
    # The last eighths lie behind what is fitted to, so that no passage stands in two parts.
    eighth = len(rows) // 8
    most = max(1, calibration_tokens // length)
    parts = [
        _evenly(rows[: -2 * eighth], most if fits else 0),
        _evenly(rows[-2 * eighth : -eighth], max(_FEWEST_TO_CHOOSE, most // 4)),
        _evenly(rows[-eighth:], max(4, most // 2)),
    ]
    parts.append(_own_outputs(model, parts[2][:_OWN_ROWS], seed))
    ends = torch.tensor([len(part) for part in parts]).cumsum(0).tolist()
    return Sequences(
        tokens=torch.cat(parts),
        calibration=slice(0, ends[0]),
        choice=Passage(rows=slice(ends[0], ends[1])),
        passages={
            "text": Passage(rows=slice(ends[1], ends[2])),
            "own": Passage(rows=slice(ends[2], ends[3]), first=length // 4),
        },
    )


def _evenly(rows: Tensor, count: int) -> Tensor:
    """Return at most `count` rows, spread over all."""
    if len(rows) <= count:
        return rows
    return rows[(torch.arange(count) * len(rows) / max(1, count)).long()]


def _own_outputs(model: Transformer, rows: Tensor, seed: int) -> Tensor:
    """Return rows of which the model has written all but the first quarter."""
    if model.embedding.weight.dtype == torch.float16:
        model = copy.deepcopy(model).float()  # the engine has no products of float16 on a CPU
    given = rows.shape[1] // 4
    left = rows.shape[1] - given
    llm = LLM(model, default_config(model, max_model_len=rows.shape[1]))
    try:
        asked = [
            SamplingParams(max_tokens=left, temperature=1.0, seed=seed + row, ignore_end=True)
            for row in range(len(rows))
        ]
        done = llm.generate(rows[:, :given].tolist(), asked)
    finally:
        llm.close()
    written = torch.tensor([item.outputs[0].tokens for item in done], dtype=torch.int64)
    return torch.cat([rows[:, :given], written], dim=1)
