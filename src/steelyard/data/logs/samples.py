"""Labelled samples of logs, and how parsers do on them."""

import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.data.logs.formats import LogFormat
from steelyard.data.logs.parsers.settings import published_parser
from steelyard.data.logs.scoring import ParseScore, score_parse
from steelyard.data.logs.templates import parse_contents
from steelyard.errors import DataError
from steelyard.files import read_json

__all__ = ["OWN", "LabelledSample", "read_samples", "score_samples"]

OWN = "steelyard"
"""Name of the parser of one setting."""
_LINES = "_2k.log.gz"


@dataclass(frozen=True, kw_only=True)
class LabelledSample:
    """Lines of a system with their true templates.

    Attributes:
        system: its name.
        contents: lines without their headers.
        events: name of the true template of each line.
        templates: its text.
        settings: header format, and what parsers of the literature need.
    """

    system: str
    contents: tuple[str, ...]
    events: tuple[str, ...]
    templates: tuple[str, ...]
    settings: dict[str, Any]


def read_samples(folder: Path) -> list[LabelledSample]:
    """Read labelled samples as Loghub has them.

    Args:
        folder: folder with formats.json and two files for each system.

    Returns:
        The samples, by name.

    Raises:
        DataError: a file is missing, or its lines are not those that were labelled.
    """
    if not (folder / "formats.json").is_file():
        raise DataError(f"{folder} has no formats.json", hint="give a folder of labelled samples")
    formats = read_json(folder / "formats.json")
    return [_sample(folder, name, formats[name]) for name in sorted(formats)]


def _sample(folder: Path, system: str, settings: dict[str, Any]) -> LabelledSample:
    try:
        lines = gzip.decompress((folder / f"{system}{_LINES}").read_bytes()).decode().split("\n")
        truth = gzip.decompress((folder / f"{system}_2k.log_structured.csv.gz").read_bytes())
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the sample {system} in {folder}: {error}") from error
    regex = LogFormat(settings["log_format"]).regex
    found = [regex.match(line.strip()) for line in lines]
    rows = list(csv.DictReader(io.StringIO(truth.decode(), newline="")))
    contents = tuple(match["Content"] for match in found if match)
    if len(contents) != len(rows):
        raise DataError(
            f"{len(contents)} lines of {system} have a header, {len(rows)} are labelled"
        )
    return LabelledSample(
        system=system,
        contents=contents,
        events=tuple(row["EventId"] for row in rows),
        templates=tuple(row["EventTemplate"] for row in rows),
        settings=settings,
    )


def score_samples(
    folder: Path, parsers: Sequence[str] = (OWN, "drain", "brain")
) -> dict[str, dict[str, ParseScore]]:
    """Return how parsers do on labelled samples.

    Args:
        folder: the samples.
        parsers: `OWN`, which has one setting for all systems, and names of published ones, which
            have settings of their own for each.

    Returns:
        Scores by system and parser.

    Raises:
        DataError: a sample cannot be read.
    """
    scores: dict[str, dict[str, ParseScore]] = {}
    for sample in read_samples(folder):
        scores[sample.system] = {}
        for name in parsers:
            if name == OWN:
                found = parse_contents(sample.contents)
            else:
                parser = published_parser(name, sample.system, sample.settings)
                found = parser.parse(sample.contents)
            scores[sample.system][name] = score_parse(
                found.groups, found.templates, sample.events, sample.templates
            )
    return scores
