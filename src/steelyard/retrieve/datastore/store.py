"""A datastore: passages, an index of their words or vectors or both, and a search over all."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from steelyard.data.stages import hash_of
from steelyard.errors import ConfigError, DataError
from steelyard.files import exclusive, read_json, sha256_file, write_json
from steelyard.retrieve.datastore.candidates import Candidates
from steelyard.retrieve.datastore.passages import PassageStore, cut_passages, writing_passages
from steelyard.retrieve.datastore.searching import PassageEncoder, StoreSearch, encoded_texts
from steelyard.retrieve.datastore.shape import StoreShape
from steelyard.retrieve.index import Hits
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.opening import open_index
from steelyard.retrieve.text.lexical import BM25Index

__all__ = ["Datastore", "PassageEncoder"]

_BATCH = 1024


class Datastore:
    """Passages in a folder, with lists of words, shards of vectors, or both.

    Attributes:
        folder: the folder.
        passages: texts by number.
        encoder: turns queries into vectors; None where the store is searched by words alone.
        shape: what is indexed.
        shards: indexes of vectors, searched together.
        words: lists of words, None where there are none.
    """

    def __init__(self, folder: Path, encoder: PassageEncoder | None = None) -> None:
        """Open a datastore.

        Args:
            folder: what `build` wrote.
            encoder: the one that it was built with, or a `QueryEncoder` for its documents; None for
                a store of words alone.

        Raises:
            DataError: the folder holds no whole datastore.
            ConfigError: it was built with another encoder.
        """
        about = read_json(folder / "datastore.json")
        self.shape = StoreShape.of_plain(about.get("shape", {}))
        given = encoder.fingerprint if encoder and self.shape.vectors else ""
        if about["encoder"] != given:
            raise ConfigError(
                f"{folder} was built with encoder {about['encoder'] or 'none'}, this is "
                f"{given or 'none'}: scores of their vectors mean nothing to each other",
                hint="use the same encoder, or build the datastore anew",
            )
        self.folder, self.encoder = folder, encoder
        self.passages = PassageStore(folder / "passages.pack")
        self.shards = [open_index(folder / name) for name in about["shards"]]
        self.words = BM25Index.open(folder / about["lexical"]) if about.get("lexical") else None
        for held, what in (
            (sum(len(shard) for shard in self.shards) if self.shape.vectors else None, "vectors"),
            (None if self.words is None else len(self.words), "words"),
        ):
            if held is not None and held != len(self.passages):
                raise DataError(
                    f"{folder} has {what} of {held} of its {len(self.passages)} passages",
                    hint="build it again; what is whole is kept",
                )

    @classmethod
    def build(
        cls,
        folder: Path,
        documents: Iterable[tuple[str, str]],
        encoder: PassageEncoder | None = None,
        *,
        words: int = 256,
        shard_passages: int = 65_536,
        index: str | StoreShape = "flat",
    ) -> "Datastore":
        """Cut documents into passages and index them; shards that are whole are kept.

        Args:
            folder: made when missing. A build that was killed goes on with its first shard that
                is not there, when it is called with the same documents and encoder.
            documents: names and texts; empty texts are left out.
            encoder: turns texts into vectors; none is needed for "bm25".
            words: most words of a passage.
            shard_passages: passages of a shard; it does not change what an exact index finds.
            index: "flat" compares all vectors; "ivf" and "ivfpq" look into some cells only, the
                latter at codes; "bm25" scores words; "hybrid" both words and all vectors. Or a
                shape with weights.

        Returns:
            The datastore.

        Raises:
            ConfigError: there is no such index, it needs an encoder, or the encoder is for queries
                alone.
            DataError: there is no text.
            StoreError: another process builds in this folder.
            CapacityError: the disk is full; whole shards stay.
        """
        if getattr(encoder, "is_for_queries", False):
            raise ConfigError(
                "this encoder is for queries alone: its passages would not lie where its documents "
                "do",
                hint="build with the encoder of documents, and search with this one",
            )
        shape = index if isinstance(index, StoreShape) else StoreShape.named(index)
        with exclusive(folder):
            with writing_passages(folder / "passages.pack") as writer:
                for name, text in documents:
                    for passage in cut_passages(text, words):
                        writer.add(passage, name)
            return cls.index_passages(
                folder, encoder, shape=shape, shard_passages=shard_passages, words=words
            )

    @classmethod
    def index_passages(
        cls,
        folder: Path,
        encoder: PassageEncoder | None,
        *,
        shape: StoreShape,
        shard_passages: int = 65_536,
        words: int = 256,
    ) -> "Datastore":
        """Index the passages that stand in a folder; whole shards are kept.

        Args:
            folder: holds `passages.pack`, and is held by the caller.
            encoder: turns texts into vectors; none is needed without vectors.
            shape: what is indexed.
            shard_passages: passages of a shard.
            words: most words of a passage, for the record.

        Returns:
            The datastore.

        Raises:
            ConfigError: vectors are wanted without an encoder.
            DataError: there is no passage.
            CapacityError: the disk is full; whole shards stay.
        """
        if shape.vectors and encoder is None:
            raise ConfigError("an index of vectors needs an encoder", hint="give one, or bm25")
        path = folder / "passages.pack"
        store = PassageStore(path)
        if not len(store):
            raise DataError("no document has a text", hint="give texts with words")
        source = sha256_file(path)
        names: list[str] = []
        lexical = f"{source[:12]}.words" if shape.words else ""
        if lexical and not (folder / lexical).is_file():
            BM25Index.build(map(store.raw, range(len(store)))).save(folder / lexical)
        if encoder is not None and shape.vectors:
            names = _shard_files(store, folder, encoder, shape, source, shard_passages)
        about = {
            "encoder": encoder.fingerprint if encoder and shape.vectors else "",
            "shards": names,
            "words": words,
            "lexical": lexical,
            "shape": shape.to_plain(),
        }
        write_json(folder / "datastore.json", about)
        _remove_others(folder, [*names, lexical])
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
        hits = self.hits(queries, count)
        return Candidates.of_search(self.passages, hits.ids, hits.distances)

    def hits(self, queries: Sequence[str], count: int, *, nprobe: int | None = None) -> Hits:
        """Return the best passages of each query, with what the search did.

        Args:
            queries: texts.
            count: passages of each.
            nprobe: cells of each shard to look into; their own number where none is given.

        Returns:
            The hits.

        Raises:
            ConfigError: count or nprobe is below 1.
        """
        return self.searching.hits(queries, count, nprobe=nprobe)

    def vector_hits(self, queries: Sequence[str], count: int, *, nprobe: int | None = None) -> Hits:
        """Return the passages whose vectors are nearest; arguments as of `hits`."""
        return self.searching.vector_hits(queries, count, nprobe=nprobe)

    @property
    def searching(self) -> StoreSearch:
        """What a search goes through."""
        return StoreSearch(
            shape=self.shape, encoder=self.encoder, shards=self.shards, words=self.words
        )


def _shard_files(
    store: PassageStore,
    folder: Path,
    encoder: PassageEncoder,
    shape: StoreShape,
    source: str,
    shard_passages: int,
) -> list[str]:
    """Write the shards that are not there; return the names of all."""
    made = shape.vector_key()
    parts = [source, encoder.fingerprint, shard_passages]
    # Exact shards of earlier versions were named without their shape.
    key = hash_of(parts if made == ["flat"] else [*parts, *made])
    names = []
    for number, first in enumerate(range(0, len(store), shard_passages)):
        names.append(f"{key[:12]}-{number:05d}.index")
        if not (folder / names[-1]).is_file():
            last = min(first + shard_passages, len(store))
            _encoded(store, range(first, last), encoder, shape).save(folder / names[-1])
    return names


def _encoded(
    store: PassageStore, numbers: range, encoder: PassageEncoder, shape: StoreShape
) -> IVF:
    """Return an index of some passages."""
    rows = np.empty((len(numbers), encoder.dim), np.float32)
    for first in range(0, len(numbers), _BATCH):
        part = numbers[first : first + _BATCH]
        (rows[first : first + len(part)],) = encoded_texts([store.text(n) for n in part], encoder)
    index = shape.index(encoder.dim, len(numbers))
    index.train(rows)
    index.add(rows, np.arange(numbers.start, numbers.stop))
    return index


def _remove_others(folder: Path, names: Sequence[str]) -> None:
    """Remove shards and lists of earlier builds."""
    for path in (*folder.glob("*.index"), *folder.glob("*.words")):
        if path.name not in names:
            path.unlink()
