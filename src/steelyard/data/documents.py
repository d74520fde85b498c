"""Clean documents in one file with their boundaries, read without loading them all."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from steelyard.data.clean import clean, decode, fingerprint, split, verdict
from steelyard.data.sources import TextFile
from steelyard.files import atomic_path

__all__ = ["Documents", "write_documents"]

MAX_FILE_BYTES = 1 << 30


class Documents:
    """Documents in UTF-8, one after the other in a file.

    Attributes:
        lengths: bytes of each document, int64 [N].
    """

    def __init__(self, text: Path, boundaries: Path) -> None:
        """Map the file.

        Args:
            text: all documents without anything between them.
            boundaries: int64 [N + 1], where each starts and the last ends.
        """
        self._bounds = np.load(boundaries, allow_pickle=False)
        # An empty file cannot be mapped.
        self._text = (
            np.memmap(text, dtype=np.uint8, mode="r")
            if self._bounds[-1]
            else np.zeros(0, dtype=np.uint8)
        )
        self.lengths = np.diff(self._bounds)

    def __len__(self) -> int:
        """Count the documents."""
        return len(self.lengths)

    def __getitem__(self, index: int) -> bytes:
        """Return document `index`, from 0."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._text[self._bounds[index] : self._bounds[index + 1]].tobytes()


def write_documents(
    files: Sequence[TextFile],
    text: Path,
    boundaries: Path,
    *,
    max_bytes: int | None,
    progress: Callable[[float], None],
) -> dict[str, object]:
    """Read files, clean them, drop exact duplicates, and write what is left.

    Args:
        files: files in the order in which they are read.
        text: file to write the documents to.
        boundaries: file to write where they start to.
        max_bytes: stop once this much is kept; None to read all.
        progress: callback that is told the fraction done.

    Returns:
        Findings: "files_read", "files_skipped" and "documents_dropped" by reason, "bytes".

    Raises:
        CapacityError: the disk is full.
    """
    skipped: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    ends = [0]
    seen: set[bytes] = set()
    read = 0
    goal = max(min(max_bytes or (1 << 62), sum(file.size_bytes for file in files)), 1)
    with atomic_path(text) as temporary, temporary.open("wb") as stream:
        for file in files:
            if max_bytes is not None and ends[-1] >= max_bytes:
                break
            read += 1
            for document in _documents_of(file, skipped):
                raw = document.encode()
                reason = verdict(document, raw) or (
                    "exact duplicate" if (mark := fingerprint(document)) in seen else ""
                )
                if reason:
                    dropped[reason] += 1
                elif max_bytes is None or ends[-1] < max_bytes:
                    seen.add(mark)
                    stream.write(raw)
                    ends.append(ends[-1] + len(raw))
            progress(min(ends[-1] / goal, 1.0))
    with atomic_path(boundaries) as temporary, temporary.open("wb") as stream:
        np.save(stream, np.array(ends, dtype=np.int64))
    return {
        "files_read": read,
        "files_skipped": dict(skipped),
        "documents_dropped": dict(dropped),
        "bytes": ends[-1],
    }


def _documents_of(file: TextFile, skipped: Counter[str]) -> Iterator[str]:
    """Yield the clean documents of one file, or count why there are none."""
    if file.size_bytes > MAX_FILE_BYTES:
        skipped["larger than 1 GiB"] += 1
        return
    try:
        content = decode(file.path.read_bytes())
    except OSError:
        skipped["unreadable"] += 1
        return
    if content is None:
        skipped["binary"] += 1
        return
    yield from split(clean(content))
