"""An index of texts behind a server: one search at a time, opened anew when it was built anew."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, DataError, SteelyardError
from steelyard.retrieve.corpus import CorpusAnswer, CorpusIndex
from steelyard.retrieve.datastore import PassageEncoder
from steelyard.retrieve.serving.turns import TooBusyError

__all__ = ["TextService"]

_WAITING_MOST = 64
T = TypeVar("T")


class TextService:
    """Answers from the newest build of an index of texts.

    Attributes:
        folder: the index.
        queries: tower that encodes queries; None where the index's own encoder does.
        num_reloads: times that a newer build was opened.
        refused: why the newest build is not open; empty where it is.
    """

    def __init__(self, folder: Path, queries: PassageEncoder | None = None) -> None:
        """Open the index.

        Args:
            folder: what `build_corpus` wrote.
            queries: tower of queries for its documents, such as a distilled one.

        Raises:
            DataError: it holds no index.
            ConfigError: the tower asks other documents.
        """
        self.folder, self.queries, self.num_reloads, self.refused = folder, queries, 0, ""
        self._index = self._opened()
        self._documents: PassageEncoder | None = None
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
        """Name of the encoder of documents."""
        encoder = self._index.store.encoder
        return encoder.fingerprint if encoder else ""

    @property
    def query_model(self) -> str:
        """Name of the encoder of queries; that of documents where one is both."""
        encoder = self._index.store.encoder
        # A tower of queries goes by the name of the documents that it asks.
        inner = getattr(encoder, "encoder", encoder)
        return inner.fingerprint if inner else ""

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

    def embed(self, texts: Sequence[str], model: str = "") -> tuple[str, NDArray[np.float32]]:
        """Return vectors of texts.

        Args:
            texts: texts with a word.
            model: name of the encoder of documents or of queries; of any other name, texts are
                taken as queries.

        Returns:
            Name of the encoder, and unit vectors [N, D]; zeros where a text has no known word.

        Raises:
            DataError: a text is empty.
            ConfigError: the index has no encoder.
            TooBusyError: too many searches wait.
        """
        if empty := [place for place, text in enumerate(texts) if not text.strip()]:
            raise DataError(f"input {empty[0]} is empty", hint="give texts with a word")

        def encoded(index: CorpusIndex) -> tuple[str, NDArray[np.float32]]:
            if index.store.encoder is None:
                raise ConfigError(
                    f"{self.folder} has no encoder: it is searched by words alone",
                    hint="build it with --kind hybrid",
                )
            if self.queries is not None and model == self.model != self.query_model:
                encoder, name = self._of_documents(index), self.model
            else:
                encoder, name = index.store.encoder, self.query_model
            return name, np.asarray(encoder.encode(texts), np.float32)

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
            self._index = self._opened()
        except (OSError, SteelyardError) as error:
            # Half a moment between two builds, a damaged one, or one that the tower of queries
            # does not ask: the open one goes on answering.
            self.refused = str(error)
            return
        self._stamp, self.refused, self._documents = stamp, "", None
        self.num_reloads += 1

    def _opened(self) -> CorpusIndex:
        """Open the newest build."""
        if self.queries is None:
            return CorpusIndex(self.folder)
        return CorpusIndex.asked_by(self.folder, self.queries)

    def _of_documents(self, index: CorpusIndex) -> PassageEncoder:
        """Return the tower of documents beside the index, read when it is first asked for."""
        if self._documents is None:
            self._documents = CorpusIndex(index.folder).store.encoder
        assert self._documents is not None
        return self._documents

    def _stamped(self) -> tuple[int, int]:
        """Return what tells one build from another."""
        status = (self.folder / "corpus.json").stat()
        return status.st_ino, status.st_mtime_ns
