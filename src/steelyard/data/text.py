"""Text to token shards: read, clean, deduplicate, train a tokenizer, pack; each stage once."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import convert

from steelyard.config import to_plain
from steelyard.data.documents import Documents, write_documents
from steelyard.data.manifest import MANIFEST, Manifest, missing, read_manifest, verify
from steelyard.data.sketch.minhash import MinHasher
from steelyard.data.sketch.near_duplicates import duplicate_roots, text_signatures
from steelyard.data.sources import TextFile, default_sources, list_files
from steelyard.data.stages import StageFolder, hash_of
from steelyard.data.token_packing import pack, split_heldout, token_dtype
from steelyard.data.tokenizer import END_OF_TEXT, MIN_VOCABULARY, load_tokenizer, train_tokenizer
from steelyard.errors import CapacityError, ConfigError, DataError
from steelyard.files import atomic_path, sha256_file, write_json
from steelyard.units import pretty

__all__ = ["default_sources", "prepare"]

VERSION = 1
MIN_TEXT_BYTES = 65536
# Enough text for the tokenizer's merges to settle; more would only take time.
_TOKENIZER_BYTES = 4_000_000
_TOKENIZER_BYTES_PER_TOKEN = 2000
_SURPLUS = 1.5  # files listed beyond max_bytes, because cleaning drops some

Progress = Callable[[str, float], None]


def prepare(
    sources: Sequence[Path | str],
    out: Path | str,
    *,
    vocab_size: int = 2048,
    heldout_fraction: float = 0.02,
    seed: int = 0,
    max_bytes: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Make token shards of text.

    Stages: "read" (decode, clean, drop exact duplicates), "deduplicate" (near duplicates),
    "tokenizer", "pack". A killed call goes on with the first unfinished stage when it is made
    again; a finished one returns at once. The same files, options and seed give the same shards.

    Args:
        sources: files and folders.
        out: folder for the shards; made if it is missing.
        vocab_size: most tokens of the tokenizer, 257 or more.
        heldout_fraction: share of the bytes kept for evaluation, above 0 and below 0.5; whole
            documents.
        seed: chooses the held-out documents.
        max_bytes: stop reading once this much clean text is kept; None to read all.
        progress: called with the stage and the fraction of it that is done.

    Returns:
        What the folder holds.

    Raises:
        DataError: a path does not exist, there is no usable text or too little of it, or a file of
            an earlier call is damaged.
        ConfigError: an option is out of range.
        CapacityError: the disk is full; what is finished stays.
    """
    _check_options(vocab_size, heldout_fraction, max_bytes)
    out = Path(out)
    progress = progress or (lambda stage, fraction: None)
    paths = [Path(source) for source in sources]
    files = list_files(paths, None if max_bytes is None else int(_SURPLUS * max_bytes))
    read_key = hash_of(
        VERSION, max_bytes, [(str(file.path), file.size_bytes, file.modified_ns) for file in files]
    )
    key = hash_of(read_key, vocab_size, heldout_fraction, seed)
    finished = _finished(out, key)
    if finished is not None:
        # A call that was killed at the very end left intermediate files beside a whole manifest.
        shutil.rmtree(out / "work", ignore_errors=True)
        progress("pack", 1.0)
        return finished
    try:
        work = _Preparation(out, files, progress)
        chosen, dropped = work.choose(read_key, max_bytes, vocab_size)
        held = split_heldout(chosen, heldout_fraction, seed)
        content = work.shards(key, chosen, held, vocab_size)
        named = [str(source) for source in sources[:20]]
        head = {"key": key, "sources": named, "seed": seed}
        return work.finish(head | dropped | content)
    except (NotADirectoryError, FileExistsError, PermissionError) as error:
        raise CapacityError(
            f"cannot write to {out}: {error.strerror}", hint="choose another --out folder"
        ) from error


def _check_options(vocab_size: int, heldout_fraction: float, max_bytes: int | None) -> None:
    """Refuse options out of range."""
    checks = (
        (
            f"vocab_size = {vocab_size}",
            MIN_VOCABULARY <= vocab_size <= 1 << 20,
            f"{MIN_VOCABULARY} (all bytes and the end of text) to {1 << 20}",
        ),
        (
            f"heldout_fraction = {heldout_fraction}",
            0 < heldout_fraction < 0.5,
            "a share above 0 and below 0.5",
        ),
        (
            f"max_bytes = {max_bytes}",
            max_bytes is None or max_bytes >= MIN_TEXT_BYTES,
            f"{MIN_TEXT_BYTES} or more, or leave it out",
        ),
    )
    for given, is_good, allowed in checks:
        if not is_good:
            raise ConfigError(f"{given} is not allowed", hint=f"give {allowed}")


def _finished(out: Path, key: str) -> Manifest | None:
    """Return the manifest of an earlier call with the same inputs, or None.

    A missing file makes it None, so that the work is done again. A file that differs from its hash
    is an error and not made anew in silence: a disk that changes bytes should be known of.
    """
    try:
        manifest = read_manifest(out)
    except DataError:
        return None
    if manifest.key != key or missing(out, manifest):
        return None
    verify(out, manifest)
    return manifest


class _Preparation:
    """One call of `prepare`: its folder, its input and its stages."""

    def __init__(self, out: Path, files: list[TextFile], progress: Progress) -> None:
        self.out = out
        self.files = files
        self.progress = progress
        self.stages = StageFolder(out / "work")

    def choose(
        self, key: str, max_bytes: int | None, vocab_size: int
    ) -> tuple[list[bytes], dict[str, Any]]:
        """Return the documents to keep, and the manifest's fields about the others."""
        read = self.stages.run("read", key, lambda: self._read(max_bytes))
        self._refuse_little(read, vocab_size)
        documents = Documents(self._path("documents.bin"), self._path("documents.npy"))
        near = self.stages.run("deduplicate", key, lambda: self._deduplicate(documents))
        kept = np.load(self._path("kept.npy"), allow_pickle=False)
        chosen = [documents[place] for place in kept.tolist()]
        if len(chosen) < 2:
            raise DataError(
                "only 1 document is left, 2 are needed: one to train on and one to hold out",
                hint="add text that differs",
            )
        return chosen, {
            "files_read": read["files_read"],
            "files_skipped": read["files_skipped"],
            "documents": len(chosen),
            "documents_dropped": read["documents_dropped"] | near,
            "text_bytes": sum(map(len, chosen)),
        }

    def shards(
        self, key: str, chosen: list[bytes], held: np.ndarray, vocab_size: int
    ) -> dict[str, Any]:
        """Cut the documents into shards; return the manifest's fields about them."""
        train = [chosen[place] for place in np.flatnonzero(~held)]
        heldout = [chosen[place] for place in np.flatnonzero(held)]
        # From here on the files of an earlier manifest are replaced, so it may not speak of them.
        (self.out / MANIFEST).unlink(missing_ok=True)
        trained = self.stages.run(
            "tokenizer", key, lambda: self._train_tokenizer(train, vocab_size)
        )
        packed = self.stages.run("pack", key, lambda: self._pack(train, heldout))
        return {
            **trained,
            **packed,
            "heldout_documents": len(heldout),
            "heldout_bytes": sum(map(len, heldout)),
            "dtype": token_dtype(trained["vocab_size"]),
            "tokenizer_sha256": sha256_file(self.out / "tokenizer.json"),
        }

    def finish(self, fields: dict[str, Any]) -> Manifest:
        """Write the manifest, and remove stale shards and the intermediate files."""
        manifest = convert(fields | {"order": "keyed"}, Manifest)
        named = {shard.name for shard in (*manifest.train, *manifest.heldout)}
        for path in (*self.out.glob("train-*.bin"), *self.out.glob("heldout-*.bin")):
            if path.name not in named:
                path.unlink()
        # The manifest makes the folder a finished one; the stages go only after it.
        write_json(self.out / MANIFEST, manifest)
        shutil.rmtree(self.stages.directory)
        return manifest

    def _path(self, name: str) -> Path:
        """Return the path of an intermediate file."""
        return self.stages.directory / name

    def _read(self, max_bytes: int | None) -> tuple[dict[str, Any], list[Path]]:
        """Do the stage "read"."""
        paths = [self._path("documents.bin"), self._path("documents.npy")]
        findings = write_documents(
            self.files,
            *paths,
            max_bytes=max_bytes,
            progress=lambda fraction: self.progress("read", fraction),
        )
        self.progress("read", 1.0)
        return findings, paths

    def _refuse_little(self, read: dict[str, Any], vocab_size: int) -> None:
        """Refuse to go on with no text, or with too little for a tokenizer and a held-out set."""
        needed = max(MIN_TEXT_BYTES, 16 * vocab_size)
        if read["bytes"] >= needed:
            return
        reasons = [f"{count} files {reason}" for reason, count in read["files_skipped"].items()]
        reasons += [
            f"{count} documents {reason}" for reason, count in read["documents_dropped"].items()
        ]
        dropped = f" (dropped: {', '.join(reasons)})" if reasons else ""
        count = read["files_read"]
        where = str(self.files[0].path) if count == 1 else f"{count} files"
        shutil.rmtree(self.stages.directory)
        if read["bytes"] == 0:
            raise DataError(f"no usable text in {where}{dropped}", hint="name files of UTF-8 text")
        message = (
            f"too little text in {where}: {read['bytes']} bytes after cleaning, {needed} "
            f"needed{dropped}"
        )
        raise DataError(message, hint=f"add text: at least {pretty(needed, 'byte')}")

    def _deduplicate(self, documents: Documents) -> tuple[dict[str, Any], list[Path]]:
        """Do the stage "deduplicate"."""
        done = 0

        def count_one() -> None:
            nonlocal done
            done += 1
            if done % 64 == 0 or done == len(documents):
                self.progress("deduplicate", done / len(documents))

        roots = duplicate_roots(
            text_signatures(
                (documents[place] for place in range(len(documents))), MinHasher(), count_one
            )
        )
        kept = np.flatnonzero(roots == np.arange(len(roots)))
        with atomic_path(self._path("kept.npy")) as temporary, temporary.open("wb") as stream:
            np.save(stream, kept)
        dropped = len(documents) - len(kept)
        return {"near duplicate": dropped} if dropped else {}, [self._path("kept.npy")]

    def _train_tokenizer(
        self, train: list[bytes], vocab_size: int
    ) -> tuple[dict[str, Any], list[Path]]:
        """Do the stage "tokenizer", on a sample spread evenly over the training text."""
        total = sum(map(len, train))
        stride = max(1, -(-total // max(_TOKENIZER_BYTES, _TOKENIZER_BYTES_PER_TOKEN * vocab_size)))
        sample = train[::stride]
        self.progress("tokenizer", 0.0)
        tokenizer = train_tokenizer((document.decode() for document in sample), vocab_size)
        path = self.out / "tokenizer.json"
        with atomic_path(path) as temporary:
            temporary.write_text(tokenizer.to_str(), encoding="utf-8")
        self.progress("tokenizer", 1.0)
        return {
            "vocab_size": tokenizer.get_vocab_size(),
            "end_token": int(tokenizer.token_to_id(END_OF_TEXT) or 0),
        }, [path]

    def _pack(self, train: list[bytes], heldout: list[bytes]) -> tuple[dict[str, Any], list[Path]]:
        """Do the stage "pack"."""
        tokenizer = load_tokenizer(self.out)
        end_token = int(tokenizer.token_to_id(END_OF_TEXT) or 0)
        total = sum(map(len, train)) + sum(map(len, heldout))
        done = 0

        def advance(size: int) -> None:
            nonlocal done
            done += size
            self.progress("pack", done / total)

        files = {
            name: pack(part, tokenizer, self.out, name, end_token=end_token, progress=advance)
            for name, part in (("train", train), ("heldout", heldout))
        }
        return {name: to_plain(shards) for name, shards in files.items()}, [
            self.out / shard.name for part in files.values() for shard in part
        ]
