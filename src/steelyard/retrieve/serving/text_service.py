"""An index of texts behind a server: one search at a time, opened anew when it was built anew."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, DataError, SteelyardError
from steelyard.retrieve.corpus import CorpusAnswer, CorpusIndex
from steelyard.retrieve.serving.turns import TooBusyError

__all__ = ["TextService"]

_WAITING_MOST = 64
T = TypeVar("T")


class TextService:
    """Answers from the newest build of an index of texts.

    Attributes:
        folder: the index.
        num_reloads: times that a newer build was opened.
    """

    def __init__(self, folder: Path) -> None:
        """Open the index.

        Args:
            folder: what `build_corpus` wrote.

        Raises:
            DataError: it holds no index.
        """
        self.folder, self.num_reloads = folder, 0
        self._index = CorpusIndex(folder)
        self._stamp = self._stamped()
        self._lock = threading.Lock()
        self._waiting = 0
        # The first search may compile: whoever asks first does not wait for that.
        self._index.search("warm up", 1)

    def __len__(self) -> int:
        """Return how many passages there are."""
        return len(self._index)

    @property
    def index(self) -> CorpusIndex:
        """The build that is open."""
        return self._index

    @property
    def model(self) -> str:
        """Name of the encoder."""
        encoder = self._index.store.encoder
        return encoder.fingerprint if encoder else ""

    def search(self, queries: Sequence[str], k: int) -> list[list[CorpusAnswer]]:
        """Return the best passages of each query.

        Args:
            queries: texts.
            k: passages of each.

        Returns:
            Answers by query.

        Raises:
            DataError: a query is empty.
            TooBusyError: too many searches wait.
        """
        return self._alone(lambda index: index.search_all(queries, k))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return vectors of texts [N, D].

        Args:
            texts: texts with a word.

        Returns:
            Unit vectors; zeros where a text has no known word.

        Raises:
            DataError: a text is empty.
            ConfigError: the index has no encoder.
            TooBusyError: too many searches wait.
        """
        if empty := [place for place, text in enumerate(texts) if not text.strip()]:
            raise DataError(f"input {empty[0]} is empty", hint="give texts with a word")

        def encoded(index: CorpusIndex) -> NDArray[np.float32]:
            if index.store.encoder is None:
                raise ConfigError(
                    f"{self.folder} has no encoder: it is searched by words alone",
                    hint="build it with --kind hybrid",
                )
            return np.asarray(index.store.encoder.encode(texts), np.float32)

        return self._alone(encoded)

    def _alone(self, work: Callable[[CorpusIndex], T]) -> T:
        """Run work on the newest build while no other does."""
        if self._waiting >= _WAITING_MOST:
            raise TooBusyError(
                f"{self._waiting} requests wait, more are not taken", hint="ask again in a second"
            )
        self._waiting += 1
        try:
            with self._lock:
                self._reload()
                return work(self._index)
        finally:
            self._waiting -= 1

    def _reload(self) -> None:
        """Open a build that has taken the place of the one that is open."""
        try:
            stamp = self._stamped()
            if stamp == self._stamp:
                return
            self._index = CorpusIndex(self.folder)
        except (OSError, SteelyardError):
            # Half a moment between two builds, or a damaged one: the open one goes on answering.
            return
        self._stamp = stamp
        self.num_reloads += 1

    def _stamped(self) -> tuple[int, int]:
        """Return what tells one build from another."""
        status = (self.folder / "corpus.json").stat()
        return status.st_ino, status.st_mtime_ns
