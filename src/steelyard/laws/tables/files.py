"""Tables of one run per row from files: separated values, Parquet, JSON lines, pipes."""

import gzip
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import DataError

if TYPE_CHECKING:
    import polars

__all__ = ["read_frame"]

_NO_NUMBER = re.compile(rb"(?<=[:,\[\s])(?:NaN|-?Infinity)(?=\s*[,}\]])")


def read_frame(
    data: "Path | str | Mapping[str, ArrayLike] | polars.DataFrame",
) -> "polars.DataFrame":
    """Read a table of one run per row.

    Args:
        data: a file of CSV, Parquet or JSON lines (.jsonl, .ndjson), CSV and JSON lines also
            gzipped (.gz); or columns, [n] each; or a frame.

    Returns:
        The table as Polars reads it, with types inferred from all rows.

    Raises:
        DataError: no such file, another kind of file, one that cannot be read, or columns of
            different lengths.
    """
    import polars

    if isinstance(data, polars.DataFrame):
        return data
    if not isinstance(data, Path | str):
        try:
            return polars.DataFrame({name: np.asarray(data[name]) for name in data})
        except (polars.exceptions.PolarsError, TypeError, ValueError) as error:
            raise DataError(
                f"not columns of one length: {error}", hint="pass one value per run in each column"
            ) from error
    return _read_file(Path(data))


def _read_file(path: Path) -> "polars.DataFrame":
    """Read a file whose ending tells its kind."""
    import polars

    # A pipe, such as /dev/stdin or a shell's <(...), is no regular file but can be read once.
    if not path.exists() or path.is_dir():
        raise DataError(
            f"no such file: {path}",
            hint="name a CSV, Parquet or JSON-lines file with one run per row",
        )
    # The ending before .gz tells the kind; types are inferred from all rows, because a column that
    # is whole for a hundred rows may hold a fraction in the next one.
    kind = "".join(path.suffixes[-2:]).removesuffix(".gz").rsplit(".", 1)[-1].lower()
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        kind = kind or _kind_of(content)
        if kind == "parquet":
            return polars.read_parquet(io.BytesIO(content))
        if kind in ("jsonl", "ndjson"):
            return _read_json_lines(content)
        if kind in ("csv", "tsv"):
            return _read_csv(content, str(path), separator="\t" if kind == "tsv" else ",")
    except (polars.exceptions.PolarsError, UnicodeDecodeError, OSError, EOFError) as error:
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path} cannot be read as {kind}: {message}",
            hint="check that the file is whole and its ending tells its kind",
        ) from error
    raise DataError(
        f"{path}: unknown kind of table {kind!r}",
        hint="endings: .csv, .csv.gz, .tsv, .parquet, .jsonl, .jsonl.gz",
    )


def _kind_of(content: bytes) -> str:
    """Tell the kind of a table without a name by how it begins."""
    if content.startswith(b"PAR1"):
        return "parquet"
    return "jsonl" if content.lstrip().startswith(b"{") else "csv"


def _read_json_lines(content: bytes) -> "polars.DataFrame":
    """Read JSON lines, with values that are not numbers as Python's json writes them."""
    import polars

    plain, count = _NO_NUMBER.subn(b"null", content)
    frame = polars.read_ndjson(io.BytesIO(plain), infer_schema_length=None)
    # The words are no JSON; as NaN again they are refused, or dropped, like any other loss.
    return frame.with_columns(polars.selectors.float().fill_null(np.nan)) if count else frame


def _read_csv(content: bytes, where: str, separator: str) -> "polars.DataFrame":
    """Read separated values; heads may be padded with blanks and must differ."""
    import polars

    head = content.partition(b"\n")[0].decode(errors="replace")
    # Spreadsheets of countries with a decimal comma write semicolons.
    if separator not in head and ";" in head:
        separator = ";"
    names = [name.strip().strip('"').strip() for name in head.split(separator)]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise DataError(
            f"{where} has more than one column {twice[0]!r}", hint="rename or remove one of them"
        )
    frame = polars.read_csv(io.BytesIO(content), infer_schema_length=None, separator=separator)
    frame = frame.rename({name: name.strip() for name in frame.columns})
    words = [name for name in frame.columns if frame[name].dtype == polars.String]
    # Blanks around a number make a column of words of it.
    read = [frame[name].str.strip_chars().cast(polars.Float64, strict=False) for name in words]
    return frame.with_columns(
        column
        for column in read
        if len(column) > 0 and column.null_count() == frame[column.name].null_count()
    )
