"""A datastore: passages, their vectors in shards, and an exact search over all of them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.data.stages import hash_of
from steelyard.errors import ConfigError, DataError
from steelyard.files import exclusive, read_json, sha256_file, write_json
from steelyard.retrieve.datastore.candidates import Candidates
from steelyard.retrieve.datastore.passages import PassageStore, cut_passages, writing_passages
from steelyard.retrieve.merging import merge_hits
from steelyard.retrieve.opening import open_index
from steelyard.retrieve.whole import IVFFlat

__all__ = ["Datastore", "PassageEncoder"]

_BATCH = 1024


class PassageEncoder(Protocol):
    """Turns texts into vectors whose inner products are scores."""

    @property
    def fingerprint(self) -> str:
        """What tells this encoder from every other: a store answers to no other."""
        ...

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.floating]:
        """Return vectors of texts [N, D]."""
        ...


class Datastore:
    """Passages in a folder, with shards of vectors that are searched together.

    Attributes:
        folder: the folder.
        passages: texts by number.
        encoder: turns queries into vectors.
    """

    def __init__(self, folder: Path, encoder: PassageEncoder) -> None:
        """Open a datastore.

        Args:
            folder: what `build` wrote.
            encoder: the one that it was built with, or a `QueryEncoder` for its documents.

        Raises:
            DataError: the folder holds no whole datastore.
            ConfigError: it was built with another encoder.
        """
        about = read_json(folder / "datastore.json")
        if about["encoder"] != encoder.fingerprint:
            raise ConfigError(
                f"{folder} was built with encoder {about['encoder']}, this is "
                f"{encoder.fingerprint}: scores of their vectors mean nothing to each other",
                hint="use the same encoder, or build the datastore anew",
            )
        self.folder, self.encoder = folder, encoder
        self.passages = PassageStore(folder / "passages.pack")
        self._shards = [open_index(folder / name) for name in about["shards"]]
        held = sum(len(shard) for shard in self._shards)
        if held != len(self.passages):
            raise DataError(
                f"{folder} has vectors of {held} of its {len(self.passages)} passages",
                hint="build it again; what is whole is kept",
            )

    @classmethod
    def build(
        cls,
        folder: Path,
        documents: Iterable[tuple[str, str]],
        encoder: PassageEncoder,
        *,
        words: int = 256,
        shard_passages: int = 65_536,
    ) -> "Datastore":
        """Cut documents into passages and encode them; shards that are whole are kept.

        Args:
            folder: made when missing. A build that was killed goes on with its first shard that
                is not there, when it is called with the same documents and encoder.
            documents: names and texts; empty texts are left out.
            encoder: turns texts into vectors.
            words: most words of a passage.
            shard_passages: passages of a shard; it does not change what is found.

        Returns:
            The datastore.

        Raises:
            DataError: there is no text.
            ConfigError: the encoder is for queries alone.
            StoreError: another process builds in this folder.
            CapacityError: the disk is full; whole shards stay.
        """
        if getattr(encoder, "is_for_queries", False):
            raise ConfigError(
                "this encoder is for queries alone: its passages would not lie where its documents "
                "do",
                hint="build with the encoder of documents, and search with this one",
            )
        with exclusive(folder):
            path = folder / "passages.pack"
            with writing_passages(path) as writer:
                for name, text in documents:
                    for passage in cut_passages(text, words):
                        writer.add(passage, name)
            store = PassageStore(path)
            if not len(store):
                raise DataError("no document has a text", hint="give texts with words")
            key = hash_of([sha256_file(path), encoder.fingerprint, shard_passages])
            names = []
            for number, first in enumerate(range(0, len(store), shard_passages)):
                names.append(f"{key[:12]}-{number:05d}.index")
                if not (folder / names[-1]).is_file():
                    last = min(first + shard_passages, len(store))
                    _encoded(store, range(first, last), encoder).save(folder / names[-1])
            about = {"encoder": encoder.fingerprint, "shards": names, "words": words}
            write_json(folder / "datastore.json", about)
            _remove_others(folder, names)
        return cls(folder, encoder)

    def __len__(self) -> int:
        """Return how many passages there are."""
        return len(self.passages)

    def search(self, queries: Sequence[str], count: int = 1000) -> Candidates:
        """Return the best passages of each query in the whole store.

        Args:
            queries: texts.
            count: candidates K of each; all steps that follow choose among these.

        Returns:
            The candidates.

        Raises:
            ConfigError: count is below 1.
        """
        asked = np.concatenate(list(_vectors(queries, self.encoder)))
        found = [shard.search(asked, count) for shard in self._shards]
        hits = merge_hits(found, count, "ip")
        return Candidates.of_search(self.passages, hits.ids, hits.distances)


def _encoded(store: PassageStore, numbers: range, encoder: PassageEncoder) -> IVFFlat:
    """Return an exact index of some passages."""
    index = IVFFlat(encoder.dim, metric="ip")
    for first in range(numbers.start, numbers.stop, _BATCH):
        part = np.arange(first, min(first + _BATCH, numbers.stop))
        texts = [store.text(number) for number in part.tolist()]
        for vectors in _vectors(texts, encoder):
            index.add(vectors, part)
    return index


def _vectors(texts: Sequence[str], encoder: PassageEncoder) -> Iterator[NDArray[np.float32]]:
    """Yield vectors of texts, a batch at a time."""
    for first in range(0, len(texts), _BATCH):
        yield np.asarray(encoder.encode(texts[first : first + _BATCH]), np.float32)


def _remove_others(folder: Path, names: Sequence[str]) -> None:
    """Remove shards of earlier builds."""
    for path in folder.glob("*.index"):
        if path.name not in names:
            path.unlink()
