"""Where the bytes of a table lie: files here, s3://, gs://, http(s):// and what fsspec opens."""

import fnmatch
import glob
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.http_file import HttpFile
from steelyard.errors import BackendError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Found", "is_remote", "list_found", "open_source", "stamp_of"]

_MOST_FILES = 100_000
_HTTP = ("http", "https")
_ARROW_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")
_MARKS = "*["
"""Marks of a pattern in an address, where a question mark begins a query."""


class Found(NamedTuple):
    """A file that a source names.

    Attributes:
        path: a path here, or an address.
        num_bytes: its size.
    """

    path: str
    num_bytes: int


def _scheme(path: str) -> str:
    """Return the scheme of an address, empty for a path."""
    head, is_address, _ = path.partition("://")
    return head.lower() if is_address and head.isalnum() else ""


def is_remote(path: str) -> bool:
    """Return whether a path is an address."""
    return bool(_scheme(path))


def _file_system(address: str) -> tuple[Any, str]:
    """Return Arrow's file system of an address, and the path in it."""
    import pyarrow as pa
    from pyarrow import fs

    if _scheme(address) in _ARROW_SCHEMES:
        try:
            return fs.FileSystem.from_uri(address)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"cannot open {address}: {error}") from error
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise BackendError(f"{address} needs a library: {error}", hint=str(error)) from error
    except ValueError as error:
        raise DataError(f"cannot open {address}: {error}", hint="look at its scheme") from error
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path


def list_found(source: str) -> list[Found]:
    """Return the files that a path, pattern, folder or address names, by name.

    Args:
        source: a path, a pattern with *, a folder, which is searched with all below, or an address;
            an address of http names one file.

    Returns:
        Files; none where there is nothing. No file lies outside of what was given.

    Raises:
        DataError: storage does not answer, or there are more than 100,000 files.
        BackendError: a library for such addresses is not installed.
    """
    if _scheme(source) in _HTTP:
        if set(source.partition("://")[2].partition("?")[0]) & set("*["):
            raise DataError(f"{source}: http lists no files", hint="name each file")
        with HttpFile(source) as file:
            return [Found(source, file.num_bytes)]
    if _scheme(source) == "file":
        source = urllib.parse.unquote(source.partition("://")[2])
    if is_remote(source):
        return _bounded(source, _remote_found(source))
    if Path(source).is_dir():
        paths = (str(path) for path in Path(source).rglob("*"))
    else:
        # A pattern may be absolute, which `Path.glob` refuses.
        paths = iter([source] if Path(source).is_file() else glob.glob(source, recursive=True))  # noqa: PTH207
    files = (path for path in paths if Path(path).is_file())
    return _bounded(source, (Found(path, Path(path).stat().st_size) for path in files))


def _bounded(source: str, files: Iterator[Found]) -> list[Found]:
    """Return files in the order of their names, a bounded number."""
    found: list[Found] = []
    for item in files:
        if len(found) == _MOST_FILES:
            raise DataError(
                f"{source} names more than {_MOST_FILES:,} files", hint="name some of its folders"
            )
        found.append(item)
    return sorted(found)


def _remote_found(source: str) -> Iterator[Found]:
    """List an address; a pattern lists the folder above its first mark."""
    import pyarrow as pa
    from pyarrow import fs

    place, has_query, query = source.partition("?")
    first = min((place.find(mark) for mark in _MARKS if mark in place), default=-1)
    folder = place if first < 0 else place[: place.rfind("/", 0, first)]
    system, base = _file_system(folder + has_query + query)
    try:
        about = system.get_file_info(base)
        chosen = fs.FileSelector(base, recursive=True, allow_not_found=True)
        is_file = about.type == fs.FileType.File
        listed = [about] if is_file else system.get_file_info(chosen)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"cannot list {source}: {error}", hint="look at the address and at your credentials"
        ) from error
    pattern = base + place[len(folder) :]
    begins = source[: source.find("://") + 3]
    for item in listed:
        if item.type != fs.FileType.File or not _is_inside(item.path, base):
            continue
        if first < 0 or _matches(item.path, pattern):
            yield Found(begins + item.path.lstrip("/") + has_query + query, item.size)


def _is_inside(path: str, base: str) -> bool:
    """Return whether a listed path lies where it was looked for: a server may say anything."""
    begins = path == base or path.startswith(base.rstrip("/") + "/")
    return begins and ".." not in path.split("/")


def _matches(path: str, pattern: str) -> bool:
    """Return whether a path fits a pattern; only ** crosses folders."""
    if "**" in pattern:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*"))
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


class _Counted:
    """A file whose reads are counted; Arrow reads through it."""

    def __init__(self, file: Any, counts: ReadCounts) -> None:
        self._file, self._counts = file, counts
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, count: int = -1) -> Any:
        found = self._file.read(count)
        self._counts.num_bytes += len(found)
        self._counts.requests += 1
        return found

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return self._file.closed


def open_source(path: str, counts: ReadCounts) -> "pa.NativeFile":
    """Open a file or an address for reading at any place.

    Args:
        path: path that `list_found` returned.
        counts: takes in what is read.

    Returns:
        An Arrow file.

    Raises:
        DataError: storage does not answer.
        OSError: there is no such file.
    """
    import pyarrow as pa

    if _scheme(path) in _HTTP:
        file: Any = HttpFile(path)
    elif is_remote(path):
        system, place = _file_system(path)
        file = system.open_input_file(place)
    else:
        file = pa.OSFile(path)
    return pa.PythonFile(_Counted(file, counts), mode="r")


def stamp_of(path: str) -> str:
    """Return what changes when a file does: its time here, or what storage says of it.

    Args:
        path: path that `list_found` returned.

    Returns:
        A short text.
    """
    if _scheme(path) in _HTTP:
        with HttpFile(path) as file:
            return f"{file.num_bytes} {file.stamp}"
    if is_remote(path):
        system, place = _file_system(path)
        about = system.get_file_info(place)
        return f"{about.size} {about.mtime_ns}"
    about = Path(path).stat()
    return f"{about.st_size} {about.st_mtime_ns}"
