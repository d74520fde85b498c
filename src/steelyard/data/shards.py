"""Memory-mapped token ids, read in an order that depends on nothing but an index and a seed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from steelyard.data.index import epoch_and_place
from steelyard.data.manifest import Manifest, ShardFile, read_manifest, verify
from steelyard.data.tokenizer import load_tokenizer
from steelyard.errors import ConfigError, DataError

__all__ = ["TokenShards", "load_tokenizer"]

_BLOCK = 4096


class TokenShards:
    """The tokens of a prepared text.

    Attributes:
        directory: folder they lie in.
        manifest: what it holds and where it came from.
        vocab_size: token ids are below it.
        num_tokens: tokens to train on.
        bytes_per_token: UTF-8 bytes an average held-out token stands for; turns nats per token into
            bits per byte.
        tokenizer: file of the tokenizer that cut the text.
        train_tokens: tokens of each training shard, memory-mapped, uint16 or uint32 [n].
        heldout_tokens: tokens kept for evaluation, memory-mapped where there is one shard of them,
            uint16 or uint32 [N].
    """

    def __init__(self, directory: Path | str, *, check: bool = True) -> None:
        """Map the files.

        Args:
            directory: folder that `data.text.prepare` made.
            check: whether every file is compared with its hash first.

        Raises:
            DataError: the folder is not finished, or a file is missing or differs.
        """
        self.directory = Path(directory)
        self.manifest: Manifest = read_manifest(self.directory)
        if check:
            verify(self.directory, self.manifest)
        self.vocab_size = self.manifest.vocab_size
        self.num_tokens = self.manifest.num_tokens
        self.bytes_per_token = self.manifest.bytes_per_token
        self.tokenizer = self.directory / "tokenizer.json"
        self.train_tokens: list[np.ndarray] = [self._map(shard) for shard in self.manifest.train]
        heldout = [self._map(shard) for shard in self.manifest.heldout]
        self.heldout_tokens: np.ndarray = (
            heldout[0] if len(heldout) == 1 else np.concatenate(heldout)
        )
        self._orders: dict[tuple[int, int, int], np.ndarray] = {}

    @property
    def order(self) -> str:
        """How windows are shuffled, "keyed" or "stored"; see `Manifest.order`."""
        return self.manifest.order

    def batch(self, index: int, batch_size: int, sequence_length: int, seed: int) -> np.ndarray:
        """Return one training batch; a pure function of its arguments.

        The text is cut into windows of `sequence_length` predicted tokens. Each pass over the text
        visits all of them once, in an order drawn anew from the seed and the number of the pass.
        The last token of a window is the first of the next.

        Args:
            index: number of the batch, from 0, without end.
            batch_size: windows B.
            sequence_length: predicted tokens T of a window.
            seed: seed of the orders.

        Returns:
            int64 [B, T + 1].

        Raises:
            ConfigError: an argument is negative, or a size 0.
            DataError: no shard holds a whole window.
        """
        if index < 0 or batch_size < 1 or sequence_length < 1:
            raise ConfigError(
                f"batch {index} of {batch_size} windows of {sequence_length} tokens cannot be made",
                hint="give an index from 0 and sizes from 1",
            )
        # A window lies in one shard: a shard's last tokens that fill none are left out.
        ends = np.cumsum([(len(tokens) - 1) // sequence_length for tokens in self.train_tokens])
        if ends[-1] < 1:
            message = f"{self.num_tokens} training tokens hold no window of {sequence_length + 1}"
            raise DataError(message, hint="add text, or lower the sequence length")
        rows = np.empty((batch_size, sequence_length + 1), dtype=np.int64)
        for row, position in enumerate(range(index * batch_size, (index + 1) * batch_size)):
            window = self._window(position, int(ends[-1]), seed)
            shard = int(np.searchsorted(ends, window, side="right"))
            start = (window - (int(ends[shard - 1]) if shard else 0)) * sequence_length
            rows[row] = self.train_tokens[shard][start : start + sequence_length + 1]
        return rows

    def _window(self, position: int, count: int, seed: int) -> int:
        """Return the window at a position of the endless stream."""
        if self.order == "keyed":
            block, place = divmod(position, _BLOCK)
            return int(self._cached((seed, block, count), self._keyed_block)[place])
        epoch, place = divmod(position, count)
        return int(self._cached((seed, epoch, count), self._stored_order)[place])

    def _cached(
        self, key: tuple[int, int, int], make: Callable[[int, int, int], np.ndarray]
    ) -> np.ndarray:
        """Return part of an order; the last two are kept, because a batch may straddle them."""
        if key not in self._orders:
            while len(self._orders) >= 2:
                del self._orders[next(iter(self._orders))]
            self._orders[key] = make(*key)
        return self._orders[key]

    @staticmethod
    def _keyed_block(seed: int, block: int, count: int) -> np.ndarray:
        """Return the windows at a block of positions: one call costs little more than for one."""
        return epoch_and_place(np.arange(block * _BLOCK, (block + 1) * _BLOCK), count, seed)[1]

    @staticmethod
    def _stored_order(seed: int, epoch: int, count: int) -> np.ndarray:
        """Return the order of a pass as folders of the first version have it."""
        return np.random.default_rng((seed, epoch)).permutation(count)

    def _map(self, shard: ShardFile) -> np.ndarray:
        """Map one file, which must have the size the manifest states."""
        path = self.directory / shard.name
        dtype = np.dtype(self.manifest.dtype).newbyteorder("<")
        if not path.is_file() or path.stat().st_size != shard.tokens * dtype.itemsize:
            message = f"{path} is missing or has another size than {shard.tokens} tokens"
            raise DataError(
                message, hint=f"delete the folder {self.directory} and prepare it again"
            )
        return np.memmap(path, dtype=dtype, mode="r", shape=(shard.tokens,))
