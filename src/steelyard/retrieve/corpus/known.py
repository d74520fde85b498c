"""Vectors of texts that were encoded before: by an earlier build, or by one that was killed."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pack import Pack, write_pack
from steelyard.errors import DataError
from steelyard.retrieve.datastore import Datastore, PassageEncoder

__all__ = ["KnownVectors", "passage_mark"]

_STAGED = 4096
"""Vectors that a killed build loses at most."""


def passage_mark(raw: bytes) -> bytes:
    """Return 128 bits of a text in UTF-8."""
    return hashlib.blake2b(raw, digest_size=16).digest()


class KnownVectors:
    """An encoder that asks another one only for texts that it has not seen.

    Attributes:
        encoded: texts that the other one was asked for.
        reused: texts whose vectors were known.
    """

    def __init__(
        self,
        encoder: PassageEncoder,
        staging: Path,
        done: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Begin with what a killed build left.

        Args:
            encoder: the encoder.
            staging: folder for vectors that no index holds yet; those of another encoder are
                removed.
            done: told how many texts have vectors, batch by batch.
        """
        self._encoder, self._done = encoder, done
        self.fingerprint, self.dim = encoder.fingerprint, encoder.dim
        self.encoded = self.reused = 0
        self._rows: dict[bytes, NDArray[np.float32]] = {}
        self._fresh: dict[bytes, NDArray[np.float32]] = {}
        self._folder = staging / self.fingerprint
        self._number = 0
        for path in sorted(self._folder.glob("*.pack")):
            self._number += 1
            try:
                pack = Pack.open(path)
                marks, rows = pack["marks"].tobytes(), pack["rows"]
            except DataError:
                path.unlink()  # damaged: its texts are encoded again
                continue
            self._rows |= {marks[16 * n : 16 * n + 16]: row for n, row in enumerate(rows)}

    def learn(self, store: Datastore) -> None:
        """Take over the vectors of an index of the same encoder that keeps them whole.

        Args:
            store: the index.
        """
        for shard in store.shards:
            shard.rows.settle()
            vectors = shard.rows.columns.get("vectors")
            if vectors is None:
                continue
            whole = np.asarray(vectors, np.float32)
            for number, row in zip(shard.rows.ids.tolist(), whole, strict=True):
                self._rows[passage_mark(store.passages.raw(number))] = row

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return vectors of texts, encoding those that are not known.

        Args:
            texts: texts.

        Returns:
            float32 [N, D].

        Raises:
            CapacityError: the disk is full.
        """
        marks = [passage_mark(text.encode()) for text in texts]
        places = {mark: place for place, mark in enumerate(marks) if mark not in self._rows}
        if places:
            found = np.asarray(
                self._encoder.encode([texts[place] for place in places.values()]), np.float32
            )
            fresh = dict(zip(places, found, strict=True))
            self._rows |= fresh
            self._fresh |= fresh
        self.encoded += len(places)
        self.reused += len(texts) - len(places)
        if len(self._fresh) >= _STAGED:
            self.stage()
        self._done(len(texts))
        return np.stack([self._rows[mark] for mark in marks])

    def stage(self) -> None:
        """Write the vectors that are new, so that a build that is killed need not encode anew."""
        if not self._fresh:
            return
        marks = np.frombuffer(b"".join(self._fresh), np.uint8)
        rows = np.stack(list(self._fresh.values()))
        write_pack(self._folder / f"{self._number:05d}.pack", {"marks": marks, "rows": rows})
        self._number += 1
        self._fresh = {}
