"""An index of texts: answers with file, lines and a snippet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.corpus.record import CorpusRecord
from steelyard.retrieve.corpus.snippets import best_lines
from steelyard.retrieve.datastore import Datastore, PassageEncoder
from steelyard.retrieve.index import checked_k
from steelyard.retrieve.text.encoder import LatentEncoder

__all__ = ["ENCODER_FILE", "TOWER_FOLDER", "CorpusAnswer", "CorpusIndex"]

ENCODER_FILE, TOWER_FOLDER = "latent.pack", "tower"


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusAnswer:
    """A passage that answers a query.

    Attributes:
        number: number of the passage.
        score: how well, higher is better; comparable within one query.
        path: file that it stands in.
        line: line of the snippet, from 1; of a table, the row.
        first_line: first line of the passage.
        last_line: last line of the passage.
        snippet: lines of it that hold what was asked for.
        text: the whole passage.
    """

    number: int
    score: float
    path: str
    line: int
    first_line: int
    last_line: int
    snippet: str
    text: str


class CorpusIndex:
    """Folders of text that are searched by words and by vectors.

    Attributes:
        folder: folder of the index.
        record: what it was built from.
        store: passages and their indexes.
    """

    def __init__(self, folder: Path, encoder: PassageEncoder | None = None) -> None:
        """Open an index.

        Args:
            folder: what `build_corpus` wrote.
            encoder: the one that it was built with, or one of queries for it; by default the
                latent encoder or the tower that lies beside.

        Raises:
            DataError: the folder holds no index, or a file is damaged.
            ConfigError: it was built with another encoder.
        """
        self.folder, self.record = folder, CorpusRecord.read(folder)
        if encoder is None and self.record.encoder == "latent":
            encoder = LatentEncoder.open(folder / ENCODER_FILE)
        elif encoder is None and (folder / TOWER_FOLDER).is_dir():
            # Imported here: torch takes seconds, and other indexes need none.
            from steelyard.retrieve.towers.folder import load_encoder

            encoder = load_encoder(folder / TOWER_FOLDER)
        self.store = Datastore(folder, encoder)

    @classmethod
    def asked_by(cls, folder: Path, encoder: PassageEncoder) -> "CorpusIndex":
        """Open an index whose queries are encoded by a tower of their own.

        Args:
            folder: what `build_corpus` wrote.
            encoder: a `QueryEncoder` for the documents' encoder, or that encoder.

        Returns:
            The index.

        Raises:
            DataError: the folder holds no index, or a file is damaged.
            ConfigError: the tower asks other documents, or the index has no vectors.
        """
        made_by = CorpusRecord.read(folder).encoder
        if made_by == encoder.fingerprint:
            return cls(folder, encoder)
        told = {
            "none": "is searched by words alone",
            "latent": "holds vectors of the encoder that was fitted on its texts",
        }.get(made_by, f"holds vectors of encoder {made_by}")
        raise ConfigError(
            f"the tower of queries asks documents of encoder {encoder.fingerprint}, but "
            f"{folder} {told}",
            hint="build the index with that tower of documents (`steelyard retrieve build "
            "--encoder`), or ask it by a student of its own",
        )

    def __len__(self) -> int:
        """Return how many passages there are."""
        return len(self.store)

    def disk_bytes(self) -> int:
        """Return the bytes of its files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def search(self, query: str, k: int = 5, *, nprobe: int | None = None) -> list[CorpusAnswer]:
        """Return the best passages.

        Args:
            query: any text with a word.
            k: passages that are wanted.
            nprobe: cells to look into; the index's own number where none is given.

        Returns:
            At most k answers, the best first; none where no passage shares anything with it.

        Raises:
            ConfigError: k is below 1.
            DataError: the query is empty.
        """
        return self.search_all([query], k, nprobe=nprobe)[0]

    def search_all(
        self, queries: Sequence[str], k: int = 5, *, nprobe: int | None = None
    ) -> list[list[CorpusAnswer]]:
        """Return the best passages of each query; arguments and errors as of `search`."""
        checked_k(k)
        if not queries:
            raise ConfigError("no query is given", hint="give a text to look for")
        for place, query in enumerate(queries):
            if not query.strip():
                raise DataError(f"query {place} is empty", hint="give a text to look for")
        hits = self.store.hits(list(queries), k, nprobe=nprobe)
        return [
            [
                self._answer(query, number, score)
                for number, score in zip(numbers, scores, strict=True)
                # Vectors of texts without a known word are zeros, near to nothing.
                if number >= 0 and score > 0
            ]
            for query, numbers, scores in zip(
                queries, hits.ids[:, :k].tolist(), hits.distances[:, :k].tolist(), strict=True
            )
        ]

    def _answer(self, query: str, number: int, score: float) -> CorpusAnswer:
        """Return a passage with its place and the lines that answer."""
        passages = self.store.passages
        text = passages.text(number)
        first, last = passages.lines(number)
        snippet = best_lines(text, query, self.store.words)
        return CorpusAnswer(
            number=number,
            score=score,
            path=passages.source(number),
            line=min(first + snippet.first, last),
            first_line=first,
            last_line=last,
            snippet=snippet.text,
            text=text,
        )
