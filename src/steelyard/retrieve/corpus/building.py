"""Builds an index of texts; what is unchanged since the last build is not read or encoded again."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from steelyard.data.sources import TextFile
from steelyard.errors import ConfigError, DataError, SteelyardError
from steelyard.files import exclusive, replace_folder
from steelyard.retrieve.corpus.choosing import ChosenShape, choose_shape
from steelyard.retrieve.corpus.cutting import cut_lines
from steelyard.retrieve.corpus.files import SkippedFiles, list_corpus, read_file
from steelyard.retrieve.corpus.index import ENCODER_FILE, TOWER_FOLDER, CorpusIndex
from steelyard.retrieve.corpus.known import KnownVectors
from steelyard.retrieve.corpus.options import CorpusBuild, CorpusOptions
from steelyard.retrieve.corpus.pilot import forecast_corpus, measure_corpus
from steelyard.retrieve.corpus.record import CorpusFile, CorpusRecord
from steelyard.retrieve.corpus.sampling import sample_passages
from steelyard.retrieve.datastore import Datastore, PassageEncoder
from steelyard.retrieve.datastore.passages import PassageStore, PassageWriter, writing_passages
from steelyard.retrieve.datastore.shape import StoreShape
from steelyard.retrieve.forecasts import BuildFigures
from steelyard.retrieve.text.encoder import LatentEncoder
from steelyard.retrieve.text.weighing import Encode, WeighedFusion, weigh

__all__ = ["CorpusProgress", "build_corpus"]

_FITTED_TEXTS, _REFIT = 10_000, 2.0
"""Passages a latent encoder is fitted on, and growth after which it is fitted anew."""
_SHARD_PASSAGES = 262_144

CorpusProgress = Callable[[str, float], None]
T = TypeVar("T")


def build_corpus(
    folder: Path,
    sources: Sequence[Path],
    options: CorpusOptions | None = None,
    *,
    encoder: PassageEncoder | None = None,
    progress: CorpusProgress | None = None,
) -> CorpusBuild:
    """Build an index of texts, or bring one up to date.

    The new index is made beside the old one and put in its place when it is whole. A build that was
    killed goes on with what it had encoded.

    Args:
        folder: folder for the index.
        sources: files and folders of text.
        options: how texts are cut and indexed.
        encoder: turns texts into vectors; a latent one is fitted on them when none is given.
        progress: told the stage and the share of it that is done.

    Returns:
        What was done.

    Raises:
        DataError: a source does not exist, or there is no text in any.
        ConfigError: an option is out of range, or a table has no such column.
        StoreError: another process builds this index.
        CapacityError: the disk is full; the old index stays.
    """
    settings = options or CorpusOptions()
    folder = folder.expanduser().resolve()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file", hint="name a folder for the index")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "corpus.json").is_file():
        raise ConfigError(f"{folder} holds something else", hint="name an empty or new folder")
    work = folder.with_name(f".{folder.name}.building")
    # Before the folder is made: sources that do not exist should leave nothing behind.
    build = _CorpusBuilder(folder, work, settings, encoder, progress or (lambda stage, share: None))
    files = list_corpus(sources, build.skipped)
    with exclusive(work):
        return build.run(files, [str(Path(s)) for s in sources])


class _CorpusBuilder:
    """One call of `build_corpus`."""

    def __init__(
        self,
        folder: Path,
        work: Path,
        options: CorpusOptions,
        encoder: PassageEncoder | None,
        progress: CorpusProgress,
    ) -> None:
        self.folder, self.work, self.options = folder, work, options
        self.encoder, self.progress = encoder, progress
        self.skipped = SkippedFiles()
        self.stage_s: dict[str, float] = {}
        self.counts = {"read": 0, "unchanged": 0, "removed": 0}
        self.weighed: WeighedFusion | None = None
        self.is_fitted = False
        self.chosen = ChosenShape(options.shape, "asked for")
        self.forecast: BuildFigures | None = None
        self.forecast_s: Mapping[str, float] = {}
        self.measured: BuildFigures | None = None

    def run(self, files: list[TextFile], sources: list[str]) -> CorpusBuild:
        """Read, encode, weigh, index, and put the index in its place."""
        record = self._blank(sources)
        old = self._old(record)
        if old and self._is_current(old, record, files):
            self.chosen = ChosenShape(old.store.shape, "as it was built")
            return self._done(old, None)
        if old is None:
            self._staged("forecast", lambda: self._forecast(files))
        else:
            # What was chosen for an index stays while it grows by pieces.
            kept = replace(old.store.shape, fusion=self.options.shape.fusion)
            same = kept.name.split()[0] == self.options.shape.name.split()[0]
            if self.options.kind == "auto" and same:
                self.chosen = ChosenShape(kept, "as it was built")
        listed = self._staged("read", lambda: self._passages(files, old))
        store = PassageStore(self.work / "passages.pack")
        if not len(store):
            told = self.skipped.told()
            raise DataError(f"no text in {len(files)} files: {told}", hint="name files with words")
        known = self._staged("fit", lambda: self._encoder(store, old))
        shape = self._staged("weigh", lambda: self._weighed(store, known, old))
        self._staged("index", lambda: self._indexed(store, known, shape))
        record = replace(
            record,
            files=listed,
            passages=len(store),
            skipped=dict(self.skipped.counts),
            fitted_on=self._fitted_on(store, old),
            found=self.weighed.found if self.weighed else {},
            made_queries=self.weighed.queries if self.weighed else 0,
        )
        self._keep_tower()
        record.write(self.work)
        shutil.rmtree(self.work / "staging", ignore_errors=True)
        replace_folder(self.work, self.folder)
        self.counts["removed"] = len(_gone(old, files))
        index = CorpusIndex(self.folder, self.encoder)
        if self.forecast:
            self._staged("try", lambda: self._try(index))
        return self._done(index, known)

    def _forecast(self, files: list[TextFile]) -> None:
        """Build a part, and choose the index by how much there is."""
        options = self.options
        sample = sample_passages(files, options.words, options.text_field, seed=options.seed)
        if sample is None:
            return
        if options.kind == "auto":
            dim = self.encoder.dim if self.encoder else options.dim
            self.chosen = choose_shape(sample.passages, dim)
        said = forecast_corpus(
            sample, self.chosen.shape, options.dim, _FITTED_TEXTS, self.encoder, seed=options.seed
        )
        self.forecast, self.forecast_s = said.figures, said.stage_s

    def _try(self, index: CorpusIndex) -> None:
        """Ask for passages by sentences of theirs, and keep the times."""
        built_s = sum(self.stage_s[name] for name in ("read", "fit", "weigh", "index"))
        self.measured = measure_corpus(index.store, built_s, seed=self.options.seed)

    def _is_current(self, old: CorpusIndex, record: CorpusRecord, files: list[TextFile]) -> bool:
        """Whether the last build is of the same files and settings."""
        stamps = [(str(file.path), file.size_bytes, file.modified_ns) for file in files]
        before = [(item.path, item.size_bytes, item.modified_ns) for item in old.record.files]
        if stamps != before or old.record.settings() != record.settings():
            return False
        if self._has_grown(old.store.passages, old):
            return False
        self.counts["unchanged"] = len(files)
        for item in old.record.files:
            self.skipped.take(item.skipped, item.path)
        return True

    def _done(self, index: CorpusIndex, known: KnownVectors | None) -> CorpusBuild:
        """Say what was done."""
        return CorpusBuild(
            index=index,
            encoded=known.encoded if known else 0,
            reused=known.reused if known else 0,
            skipped=self.skipped,
            weighed=self.weighed,
            is_fitted=self.is_fitted,
            why=self.chosen.why,
            forecast=self.forecast,
            measured=self.measured,
            stage_s=self.stage_s,
            forecast_s=dict(self.forecast_s),
            **self.counts,
        )

    def _staged(self, name: str, work: Callable[[], T]) -> T:
        """Do a stage, and keep its time."""
        self.progress(name, 0.0)
        began_s = time.perf_counter()
        result = work()
        self.stage_s[name] = time.perf_counter() - began_s
        self.progress(name, 1.0)
        return result

    def _blank(self, sources: list[str]) -> CorpusRecord:
        """Return the record without what is found out."""
        name = "none"
        if self.options.shape.vectors:
            name = self.encoder.fingerprint if self.encoder else "latent"
        return CorpusRecord(
            sources=sources,
            files=[],
            passages=0,
            words=self.options.words,
            text_field=self.options.text_field,
            encoder=name,
            dim=self.options.dim,
            fitted_on=0,
            kind=str(self.options.kind if self.options.kind == "auto" else self.options.shape.name),
            seed=self.options.seed,
        )

    def _old(self, record: CorpusRecord) -> CorpusIndex | None:
        """Return the last build, where it can be built on."""
        try:
            old = CorpusIndex(self.folder, self.encoder)
        except SteelyardError:
            # There is none, it is damaged, or of another encoder: everything is made anew.
            return None
        same = (old.record.words, old.record.text_field) == (record.words, record.text_field)
        # An index by a tower opens with the one beside it, which this build may not be by.
        is_known = old.record.encoder in ("latent", "none", record.encoder)
        return old if same and is_known else None

    def _passages(self, files: list[TextFile], old: CorpusIndex | None) -> list[CorpusFile]:
        """Write the passages of all files; those of unchanged ones come from the last build."""
        before = {item.path: item for item in old.record.files} if old else {}
        listed: list[CorpusFile] = []
        total = max(sum(file.size_bytes for file in files), 1)
        done = first = 0
        with writing_passages(self.work / "passages.pack") as writer:
            for file in files:
                known = before.get(str(file.path))
                stamp = (file.size_bytes, file.modified_ns)
                if old and known and (known.size_bytes, known.modified_ns) == stamp:
                    self.counts["unchanged"] += 1
                    _copy(old.store.passages, known, writer)
                    item = replace(known, first=first)
                else:
                    self.counts["read"] += 1
                    item = self._read(file, writer, first)
                self.skipped.take(item.skipped, file.path)
                listed.append(item)
                first += item.passages
                done += file.size_bytes
                self.progress("read", done / total)
        return listed

    def _read(self, file: TextFile, writer: PassageWriter, first: int) -> CorpusFile:
        """Write the passages of one file."""
        count, path, left_out = 0, str(file.path), SkippedFiles()
        for part in read_file(file, left_out, self.options.text_field):
            for passage in cut_lines(part, self.options.words):
                writer.add(passage.text, path, (passage.first_line, passage.last_line))
                count += 1
        return CorpusFile(
            path=path,
            size_bytes=file.size_bytes,
            modified_ns=file.modified_ns,
            first=first,
            passages=count,
            skipped=dict(left_out.counts),
        )

    def _encoder(self, store: PassageStore, old: CorpusIndex | None) -> KnownVectors | None:
        """Return what encodes passages, with all vectors that are known."""
        if not self.options.shape.vectors:
            return None
        encoder = self.encoder or self._latent(store, old)
        count = len(store)
        done = [0]

        def note(more: int) -> None:
            done[0] += more
            self.progress("index", min(done[0] / count, 1.0))

        known = KnownVectors(encoder, self.work / "staging", note)
        before = old.store.encoder if old else None
        if old and before and before.fingerprint == encoder.fingerprint:
            known.learn(old.store)
        return known

    def _keep_tower(self) -> None:
        """Put a tower beside its vectors, so that an index is never without it."""
        shutil.rmtree(self.work / TOWER_FOLDER, ignore_errors=True)
        if self.encoder is None or not self.options.shape.vectors:
            return
        from steelyard.retrieve.towers import TowerEncoder, save_encoder

        if isinstance(self.encoder, TowerEncoder):
            save_encoder(self.encoder, self.work / TOWER_FOLDER)

    def _latent(self, store: PassageStore, old: CorpusIndex | None) -> LatentEncoder:
        """Return the encoder of the last build, or of one that was killed, or a new one."""
        path = self.work / ENCODER_FILE
        kept = old.store.encoder if old else None
        if old and isinstance(kept, LatentEncoder) and not self._has_grown(store, old):
            kept.save(path)
            return kept
        texts = _PassageTexts(store)
        encoder = LatentEncoder.fit(
            texts, self.options.dim, most_texts=_FITTED_TEXTS, seed=self.options.seed
        )
        encoder.save(path)
        self.is_fitted = True
        return encoder

    def _has_grown(self, store: PassageStore, old: CorpusIndex) -> bool:
        """Whether there is so much more or less text that words have other weights."""
        if old.record.encoder != "latent":
            return False
        ratio = len(store) / max(old.record.fitted_on, 1)
        is_wider = self.options.dim != old.record.dim
        return ratio > _REFIT or ratio < 1 / _REFIT or is_wider

    def _fitted_on(self, store: PassageStore, old: CorpusIndex | None) -> int:
        if self.is_fitted:
            return len(store)
        return old.record.fitted_on if old else 0

    def _weighed(
        self, store: PassageStore, known: KnownVectors | None, old: CorpusIndex | None
    ) -> StoreShape:
        """Return the shape with weights chosen on queries made from the texts."""
        shape = self.chosen.shape
        if known is None or not shape.words:
            return shape
        if old and not self.is_fitted and old.store.shape.name == shape.name:
            return replace(shape, fusion=old.store.shape.fusion)

        def fit(pool: Sequence[str]) -> Encode:
            if self.encoder is not None:
                return self.encoder.encode
            return LatentEncoder.fit(pool, self.options.dim, seed=self.options.seed).encode

        self.weighed = weigh(_PassageTexts(store), fit, seed=self.options.seed)
        return replace(shape, fusion=self.weighed.fusion)

    def _indexed(
        self, store: PassageStore, known: KnownVectors | None, shape: StoreShape
    ) -> Datastore:
        """Index words and vectors."""
        return Datastore.index_passages(
            self.work,
            known,
            shape=shape,
            shard_passages=_SHARD_PASSAGES,
            words=self.options.words,
        )


def _gone(old: CorpusIndex | None, files: list[TextFile]) -> set[str]:
    """Return the files of the last build that are no more."""
    return {item.path for item in old.record.files} - {str(f.path) for f in files} if old else set()


class _PassageTexts(Sequence[str]):
    """Texts of a store, read when they are looked at."""

    def __init__(self, store: PassageStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, place: int) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._store.text(place)


def _copy(store: PassageStore, file: CorpusFile, writer: PassageWriter) -> None:
    """Write passages of a file that has not changed."""
    for number in range(file.first, file.first + file.passages):
        writer.add(store.text(number), file.path, store.lines(number))
