"""What ours is compared with: a loader that replays, a shuffle buffer, and torch's DataLoader."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from steelyard.data.tasks import ByteVocabulary, Feature

__all__ = [
    "GreedyDataset",
    "ManyExamples",
    "buffer_shuffle",
    "greedy_efficiency",
    "replay",
    "torch_rows",
]

_DOCUMENTS_AT_ONCE = 64


def buffer_shuffle(size: int, buffer: int, seed: int) -> np.ndarray:
    """Return the order of a stream of `size` that passes a shuffle buffer, as tf.data does it."""
    rng = np.random.default_rng(seed)
    held = np.arange(buffer)
    order = np.empty(size, dtype=np.int64)
    slots = rng.integers(0, buffer, size - buffer).tolist()
    for place, slot in enumerate(slots):
        order[place] = held[slot]
        held[slot] = place + buffer
    order[size - buffer :] = rng.permutation(held)
    return order


def replay(sizes: np.ndarray, batch_size: int, buffer: int, length: int, step: int) -> list[int]:
    """Find the examples of a step by running through all before it: the usual iterator's resume.

    It only draws the order and fills rows; examples that were seen are not even read.
    """
    rng = np.random.default_rng(0)
    held = list(range(buffer))
    position, room, rows = buffer, length, 0
    here: list[int] = []
    while True:
        slot = int(rng.integers(buffer))
        example = held[slot] % len(sizes)
        held[slot] = position
        position += 1
        if sizes[example] > room:
            rows, room = rows + 1, length
            if rows % batch_size == 0:
                if rows // batch_size == step + 1:
                    return here
                here = []
        room -= int(sizes[example])
        here.append(example)


def greedy_efficiency(sizes: np.ndarray, length: int) -> float:
    """Return how full rows are when each example goes into the open row, or starts the next."""
    rows, room = 0, 0
    for size in sizes.tolist():
        if size > room:
            rows, room = rows + 1, length
        room -= size
    return float(sizes.sum() / (rows * length))


class ManyExamples:
    """Examples of known lengths in memory, to time the loader without a disk."""

    name = "many"

    def __init__(self, size: int) -> None:
        """Draw lengths as documents have them.

        Args:
            size: number of examples.
        """
        self.features = {"targets": Feature(vocabulary=ByteVocabulary(), add_end=False)}
        drawn = np.random.default_rng(0).lognormal(5.5, 1, size)
        self._sizes = drawn.clip(3, 1024).astype(np.int64)

    def __len__(self) -> int:
        """Count the examples."""
        return len(self._sizes)

    def read(self, index: int, /, *, seed: int = 0, epoch: int = 0) -> dict[str, np.ndarray]:
        """Return an example of the right length."""
        return {"targets": np.full(self._sizes[index], 3, dtype=np.int32)}

    def sizes(self, name: str, /) -> np.ndarray:
        """Return the lengths."""
        return self._sizes


class GreedyDataset(IterableDataset):
    """Files of text, tokenized, joined with an end between them, and cut into rows."""

    def __init__(self, files: list[Path], tokenizer: Path, length: int, batch_size: int) -> None:
        """Keep the names.

        Args:
            files: one document each.
            tokenizer: file of the tokenizer.
            length: tokens T of a row.
            batch_size: rows B of a batch.
        """
        super().__init__()
        self._files, self._tokenizer = files, tokenizer
        self._length, self._batch_size = length, batch_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield batches [B, T + 1] of this worker's share of the files."""
        tokenizer = Tokenizer.from_file(str(self._tokenizer))
        info = get_worker_info()
        files = self._files[info.id :: info.num_workers] if info else self._files
        size = self._batch_size * self._length
        waiting: list[int] = []
        for start in range(0, len(files), _DOCUMENTS_AT_ONCE):
            texts = [path.read_text() for path in files[start : start + _DOCUMENTS_AT_ONCE]]
            for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                waiting += encoding.ids
                waiting.append(0)
            whole = (len(waiting) - 1) // size
            for place in range(whole):
                tokens = torch.tensor(waiting[place * size : (place + 1) * size + 1])
                yield tokens.unfold(0, self._length + 1, self._length)
            waiting = waiting[whole * size :]


def torch_rows(dataset: GreedyDataset, workers: int) -> int:
    """Read a dataset through torch's DataLoader; return the tokens it gave."""
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    return sum(batch.shape[0] * (batch.shape[1] - 1) for batch in loader)
