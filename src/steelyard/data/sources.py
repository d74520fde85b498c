"""Where text comes from: files a user names, or the text that every Python installation carries."""

import hashlib
import os
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import DataError

__all__ = ["TEXT_SUFFIXES", "TextFile", "default_sources", "list_files", "other_files"]

TEXT_SUFFIXES = frozenset(
    (
        ".adoc",
        ".c",
        ".cc",
        ".cfg",
        ".cpp",
        ".go",
        ".h",
        ".hpp",
        ".htm",
        ".html",
        ".ini",
        ".java",
        ".js",
        ".md",
        ".org",
        ".php",
        ".pl",
        ".py",
        ".pyi",
        ".r",
        ".rb",
        ".rs",
        ".rst",
        ".scala",
        ".sh",
        ".sql",
        ".swift",
        ".tex",
        ".text",
        ".toml",
        ".ts",
        ".txt",
        ".xml",
        ".yaml",
        ".yml",
    )
)
"""Endings that are read inside a folder; a file that is named itself is read whatever its
ending."""

_LIBRARY_SUFFIXES = frozenset((".md", ".py", ".rst", ".txt"))
_SKIPPED_FOLDERS = frozenset(("__pycache__", "node_modules"))
_SKIPPED_LIBRARY_FOLDERS = frozenset(
    ("__pycache__", "dist-packages", "encodings", "idle_test", "site-packages", "test", "tests")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFile:
    """A file that may hold text.

    Attributes:
        path: path of the file.
        size_bytes: size of the file.
        modified_ns: time stamp, which together with the size tells whether the file changed.
    """

    path: Path
    size_bytes: int
    modified_ns: int


def default_sources() -> list[Path]:
    """List text that every machine with Python has, most useful first.

    The standard library's modules and texts come first, then installed packages and the system's
    documentation in an order that is hashed, so that a limit on bytes takes a fair sample of them.
    Test folders are left out.

    Returns:
        Files, not folders.
    """
    standard = Path(sysconfig.get_path("stdlib"))
    first = sorted(_walk(standard, _LIBRARY_SUFFIXES, _SKIPPED_LIBRARY_FOLDERS))
    folders = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")} | {
        Path("/usr/share/doc")
    }
    skipped = _SKIPPED_LIBRARY_FOLDERS - {"site-packages", "dist-packages"}
    rest = [
        path
        for folder in sorted(folders)
        if folder.is_dir()
        for path in _in_hashed_order(folder, _LIBRARY_SUFFIXES, skipped)
    ]
    return first + rest


def list_files(
    sources: list[Path],
    max_bytes: int | None = None,
    *,
    suffixes: frozenset[str] = TEXT_SUFFIXES,
) -> list[TextFile]:
    """List the files behind files and folders, in an order that depends on nothing but their names.

    Args:
        sources: files and folders. A folder's files come in the order of a hash of their names, so
            that its beginning is a sample.
        max_bytes: stop once the files listed hold this much; None for all.
        suffixes: endings that are listed of a folder, in lower case.

    Returns:
        Files without repeats, hidden ones left out.

    Raises:
        DataError: no source is given, one does not exist, or a folder holds no text file.
    """
    if not sources:
        raise DataError("no text was named", hint="name a file or folder of text")
    found: dict[Path, TextFile] = {}
    total = 0
    for source in sources:
        for path in _files_of(Path(source), suffixes):
            try:
                status = path.stat()
            except OSError:  # a broken link, or removed meanwhile
                continue
            # A pipe or a device among the files would be read for ever.
            if path in found or not stat.S_ISREG(status.st_mode):
                continue
            found[path] = TextFile(
                path=path, size_bytes=status.st_size, modified_ns=status.st_mtime_ns
            )
            total += status.st_size
            if max_bytes is not None and total >= max_bytes:
                return list(found.values())
    return list(found.values())


def other_files(sources: list[Path], suffixes: frozenset[str]) -> Iterator[Path]:
    """Yield the files of folders that `list_files` leaves out for their endings.

    Args:
        sources: files and folders.
        suffixes: endings that are listed.

    Yields:
        Files; hidden ones and those in skipped folders are left out here too.
    """
    for source in sources:
        for root, name in _names(Path(source), _SKIPPED_FOLDERS):
            if os.path.splitext(name)[1].lower() not in suffixes:  # noqa: PTH122
                yield Path(root, name)


def _files_of(source: Path, suffixes: frozenset[str]) -> list[Path]:
    """Return the file itself, or a folder's text files."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DataError(f"no such file or folder: {source}", hint="check the path")
    files = _in_hashed_order(source, suffixes, _SKIPPED_FOLDERS)
    if not files:
        raise DataError(
            f"no text file in folder {source}",
            hint=f"name the files themselves, or use an ending among {' '.join(sorted(suffixes))}",
        )
    return files


def _in_hashed_order(folder: Path, suffixes: frozenset[str], skipped: frozenset[str]) -> list[Path]:
    """List a folder's files by the hash of their names within it."""
    # Names within the folder, so that a copy of it elsewhere gives the same order and sample.
    start = len(os.path.join(folder, ""))  # noqa: PTH118

    def key(path: Path) -> tuple[bytes, Path]:
        return hashlib.blake2b(os.fsencode(str(path)[start:]), digest_size=8).digest(), path

    return sorted(_walk(folder, suffixes, skipped), key=key)


def _walk(folder: Path, suffixes: frozenset[str], skipped: frozenset[str]) -> Iterator[Path]:
    """Yield files with one of the endings, without hidden ones and linked folders."""
    for root, name in _names(folder, skipped):
        if os.path.splitext(name)[1].lower() in suffixes:  # noqa: PTH122
            yield Path(root, name)


def _names(folder: Path, skipped: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield folder and name of all files, without hidden ones and linked folders."""
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in skipped and not name.startswith(".")]
        yield from ((root, name) for name in names if not name.startswith("."))
