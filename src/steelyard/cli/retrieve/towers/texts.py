"""Columns of texts from files, and shapes of towers, for the verbs of towers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cyclopts

from steelyard.catalog import Architecture
from steelyard.errors import ConfigError, DataError, require
from steelyard.laws.tables.files import read_frame
from steelyard.nn.towers import Tower
from steelyard.retrieve.corpus.asking import asked_passages
from steelyard.train import EstimatorConfig

__all__ = [
    "WORDS",
    "PairOptions",
    "RunOptions",
    "ShapeOptions",
    "StudentOptions",
    "parameters_of",
    "texts_of",
]

WORDS = 64
"""Most words of a passage of a folder."""


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """What a tower is like.

    Args:
        layers: transformer layers.
        width: width of the tower.
        dim: numbers in a vector.
    """

    layers: int = 2
    width: int = 128
    dim: int = 64

    def architecture(self, vocabulary: int, positions: int) -> Architecture:
        """Return the language model of a tower.

        Args:
            vocabulary: tokens that there are.
            positions: tokens of the longest text.

        Returns:
            A small Llama.

        Raises:
            ConfigError: a shape that no model has.
        """
        if self.layers < 1 or self.width < 8 or self.width % 8 or self.dim < 0:
            raise ConfigError(
                f"--layers {self.layers}, --width {self.width}, --dim {self.dim}",
                hint="give 1 layer or more, a width that 8 divides, and 1 number or more",
            )
        # Heads of 32 columns where those divide the width, else one.
        heads = self.width // 32 if self.width % 32 == 0 else 1
        return Architecture(
            name=f"tower-{self.layers}x{self.width}",
            num_layers=self.layers,
            hidden_size=self.width,
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=self.width // heads,
            intermediate_size=max(8, self.width * 8 // 3 // 8 * 8),
            vocab_size=vocabulary,
            max_positions=positions,
            tied_embeddings=True,
        )


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """What towers learn from.

    Args:
        clozes: sentences to pair with the rest of their document, as further pairs.
        rounds: rounds; from the second on, mined documents that are hard to tell stand in batches.
        hard: mined documents of each query.
        chunk: texts whose activations are held at once, for batches that do not fit; 0 for all.
        temperature: what cosines are divided by.
        vocabulary: tokens that are learned from the texts.
        query_tokens: tokens that longer queries are cut to.
        document_tokens: tokens that longer documents are cut to.
    """

    clozes: int = 0
    rounds: int = 2
    hard: int = 2
    chunk: int = 0
    temperature: float = 0.05
    vocabulary: int = 8192
    query_tokens: int = 32
    document_tokens: int = 128

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if self.rounds < 1 or self.clozes < 0 or self.hard < 0:
            raise ConfigError(
                f"--rounds {self.rounds}, --clozes {self.clozes}, --hard {self.hard}",
                hint="give 1 round or more, and 0 clozes and hard ones or more",
            )


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StudentOptions:
    """What a student is like; its vectors have the teacher's numbers.

    Args:
        layers: transformer layers.
        width: width of the tower.
    """

    layers: int = 1
    width: int = 64


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a tower is trained.

    Args:
        steps: optimizer steps, of each round where there are several.
        batch: texts or pairs of a step.
        rate: peak learning rate.
        seed: seed of weights, draws and orders.
        threads: CPU threads; all usable ones when 0.
    """

    steps: int = 200
    batch: int = 64
    rate: float = 3e-3
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range, before texts are read.

        Raises:
            ConfigError: a number is out of range.
        """
        require(
            self,
            steps=(self.steps >= 1, "1 or more"),
            batch=(self.batch >= 1, "1 or more"),
            rate=(0 < self.rate < math.inf, "above 0"),
            seed=(self.seed >= 0, "0 or more"),
            threads=(self.threads >= 0, "0 or more"),
        )

    def config(self) -> EstimatorConfig:
        """Return the run: a warm-up, and a rate that falls in the second half."""
        return EstimatorConfig(
            steps=self.steps,
            batch_size=self.batch,
            learning_rate=self.rate,
            warmup_steps=min(10, self.steps // 5),
            cooldown_steps=self.steps // 2,
            weight_decay=0.1,
            seed=self.seed,
            threads=self.threads,
            checkpoint_every=100,
        )


def texts_of(path: Path, *columns: str, words: int = WORDS) -> list[list[str]]:
    """Read columns of texts.

    Args:
        path: file of JSON lines, CSV or Parquet; JSON lines and CSV also gzipped. Or a folder of
            texts: its passages without a sentence are the column "document", their sentences
            "query".
        *columns: names of the columns.
        words: most words of a passage of a folder.

    Returns:
        Texts of each column; missing ones are empty.

    Raises:
        DataError: the file cannot be read, or lacks a column (those it has are named); or the
            folder has no text.
    """
    if path.is_dir():
        frame: Mapping[str, Sequence[object]] = dict(
            zip(("query", "document"), asked_passages(path, words), strict=True)
        )
        names = list(frame)
    else:
        table = read_frame(path)
        names = table.columns
        frame = {name: table[name].to_list() for name in columns if name in names}
    for name in columns:
        if name not in names:
            raise DataError(f"{path} has no column {name!r}", hint=f"it has {', '.join(names)}")
    found = [[str(value or "") for value in frame[name]] for name in columns]
    if not found[0]:
        raise DataError(f"{path} has no row", hint="give a file with texts")
    return found


def parameters_of(tower: Tower) -> int:
    """Return parameters without embeddings."""
    return sum(part.numel() for name, part in tower.named_parameters() if "embedding" not in name)
