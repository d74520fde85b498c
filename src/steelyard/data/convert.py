"""Task features to model inputs: decoder, prefix decoder, and encoder with decoder.

A converter says what one example becomes in each stream of tokens; `batch` lays examples out in
rows, one or several to a row, with segments, positions and weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from steelyard.data.tasks.records import Record
from steelyard.errors import DataError, require

__all__ = ["Converter", "LanguageModel", "PrefixLanguageModel", "SequenceToSequence", "batch"]

_DTYPES = {
    "inputs": np.int64,
    "targets": np.int64,
    "weights": np.float32,
    "prefix": np.bool_,
    "segments": np.int32,
    "positions": np.int32,
}
_OF_EVERY_STREAM = ("segments", "positions")


class Converter(Protocol):
    """How a task's features become streams of tokens."""

    @property
    def lengths(self) -> Mapping[str, int]:
        """Length of a row in each stream, by the prefix of the stream's names."""
        ...

    @property
    def fields(self) -> Mapping[str, tuple[str, ...]]:
        """Arrays of each stream beside segments and positions."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """Features an example must have."""
        ...

    def sizes(self, sizes: Mapping[str, np.ndarray], /) -> dict[str, np.ndarray]:
        """Return the tokens of examples in each stream before trimming, from those of features."""
        ...

    def segments(self, record: Record, /) -> dict[str, dict[str, np.ndarray]]:
        """Return the arrays of one example by stream, trimmed to the row's length."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _DecoderRows:
    """Rows of a decoder, which has one stream of tokens."""

    length: int
    start: int = 0

    def __post_init__(self) -> None:
        """Refuse a row without tokens.

        Raises:
            ConfigError: the length is below 1.
        """
        require(self, length=(self.length >= 1, "at least 1"))

    @property
    def lengths(self) -> Mapping[str, int]:
        """One stream without a prefix."""
        return {"": self.length}


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModel(_DecoderRows):
    """Predict every target from those before it.

    Attributes:
        length: tokens T of a row.
        start: id that stands before the first target.
    """

    features = ("targets",)

    @property
    def fields(self) -> Mapping[str, tuple[str, ...]]:
        """Inputs, targets and their weights."""
        return {"": ("inputs", "targets", "weights")}

    def sizes(self, sizes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the tokens of examples."""
        return {"": sizes["targets"]}

    def segments(self, record: Record) -> dict[str, dict[str, np.ndarray]]:
        """Return one example; every target has weight 1."""
        return {"": _predicted(record["targets"][: self.length], self.start)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixLanguageModel(_DecoderRows):
    """Predict targets after inputs that see each other both ways.

    Attributes:
        length: tokens T of a row.
        start: id that stands before the first token.
    """

    features = ("inputs", "targets")

    @property
    def fields(self) -> Mapping[str, tuple[str, ...]]:
        """As of a language model, and where attention goes both ways."""
        return {"": ("inputs", "targets", "weights", "prefix")}

    def sizes(self, sizes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the tokens of examples."""
        return {"": sizes["inputs"] + sizes["targets"]}

    def segments(self, record: Record) -> dict[str, dict[str, np.ndarray]]:
        """Return one example; weights are 1 on the targets only.

        `prefix` is true where the model reads the start or an input, so that the first target is
        predicted with the whole prefix in sight.
        """
        count = len(record["inputs"])
        tokens = np.concatenate([record["inputs"], record["targets"]])[: self.length]
        places = np.arange(len(tokens))
        made = _predicted(tokens, self.start)
        return {
            "": made | {"weights": (places >= count).astype(np.float32), "prefix": places <= count}
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceToSequence:
    """Read inputs with an encoder, predict targets with a decoder.

    Attributes:
        inputs: tokens of an encoder row.
        targets: tokens of a decoder row.
        start: id that stands before the first target.
    """

    inputs: int
    targets: int
    start: int = 0
    features = ("inputs", "targets")

    def __post_init__(self) -> None:
        """Refuse rows without tokens.

        Raises:
            ConfigError: a length is below 1.
        """
        require(
            self,
            inputs=(self.inputs >= 1, "at least 1"),
            targets=(self.targets >= 1, "at least 1"),
        )

    @property
    def lengths(self) -> Mapping[str, int]:
        """A stream for the encoder and one for the decoder."""
        return {"encoder_": self.inputs, "decoder_": self.targets}

    @property
    def fields(self) -> Mapping[str, tuple[str, ...]]:
        """The encoder has no targets."""
        return {"encoder_": ("inputs",), "decoder_": ("inputs", "targets", "weights")}

    def sizes(self, sizes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the tokens of examples in both streams."""
        return {"encoder_": sizes["inputs"], "decoder_": sizes["targets"]}

    def segments(self, record: Record) -> dict[str, dict[str, np.ndarray]]:
        """Return one example; both streams number its segment alike."""
        return {
            "encoder_": {"inputs": record["inputs"][: self.inputs]},
            "decoder_": _predicted(record["targets"][: self.targets], self.start),
        }


def batch(converter: Converter, rows: Sequence[Sequence[Record]]) -> dict[str, np.ndarray]:
    """Lay examples out in rows.

    Args:
        converter: says what an example becomes.
        rows: examples of each row; none makes an empty row.

    Returns:
        Arrays [B, length] by stream and name: "inputs" and "targets" int64, "weights" float32,
        "prefix" bool, "segments" int32 (from 1; 0 is padding), "positions" int32 (from 0 in every
        segment).

    Raises:
        DataError: the examples of a row are longer than the row.
    """
    made = {
        stream + name: np.zeros((len(rows), length), dtype=_DTYPES[name])
        for stream, length in converter.lengths.items()
        for name in (*converter.fields[stream], *_OF_EVERY_STREAM)
    }
    for row, records in enumerate(rows):
        filled = dict.fromkeys(converter.lengths, 0)
        for number, record in enumerate(records, 1):
            for stream, arrays in converter.segments(record).items():
                start = filled[stream]
                size = len(arrays["inputs"])
                stop = filled[stream] = start + size
                # Packing went by lengths of prepared examples; steps of each reading come after.
                if stop > converter.lengths[stream]:
                    raise DataError(
                        f"examples of one row hold {stop} tokens, the row {stream}inputs "
                        f"{converter.lengths[stream]}: a step changed their length",
                        hint="do steps that change lengths in prepare, or load without packing",
                    )
                for name, values in arrays.items():
                    made[stream + name][row, start:stop] = values
                made[stream + "segments"][row, start:stop] = number
                made[stream + "positions"][row, start:stop] = np.arange(size)
    return made


def _predicted(tokens: np.ndarray, start: int) -> dict[str, np.ndarray]:
    """Return tokens as targets of weight 1, and as inputs moved one place on after the start."""
    inputs = np.empty(len(tokens), dtype=np.int64)
    # A slice and not an index: an example may have no tokens.
    inputs[:1] = start
    inputs[1:] = tokens[:-1]
    return {"inputs": inputs, "targets": tokens, "weights": np.ones(len(tokens), np.float32)}
