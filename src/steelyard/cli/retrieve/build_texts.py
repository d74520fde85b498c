"""`steelyard retrieve build FOLDER`: an index of texts."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cyclopts

from steelyard.cli.following import say_next
from steelyard.cli.output import print_report
from steelyard.cli.retrieve.forecasting import check_values, checked, keep_checks, past_checks
from steelyard.config import load
from steelyard.errors import ConfigError, DataError
from steelyard.files import read_json, user_dir, write_json
from steelyard.quantity import Check
from steelyard.retrieve.build_picture import ways_chart
from steelyard.retrieve.corpus import CorpusBuild, CorpusOptions
from steelyard.retrieve.corpus.building import CorpusProgress, build_corpus
from steelyard.retrieve.forecasts import TEXT_FORECASTER
from steelyard.runs.progress import Advance, progress
from steelyard.runs.report import Chart, Checks, Facts, Report, Section, Text
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.retrieve.towers import TowerEncoder

__all__ = ["TextFlags", "build_texts", "latest_index", "read_recipe"]

_STAGES = ("forecast", "read", "fit", "weigh", "index", "try")


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TextFlags:
    """How texts are cut and encoded; vectors in a file are not.

    Args:
        words: most words of a passage.
        dim: numbers in a vector of the encoder that is fitted on the texts.
        text_field: column or key with the text of Parquet files and JSON lines; text, content,
            body, passage or abstract when empty.
    """

    words: int = 128
    dim: int = 128
    text_field: str = ""


@dataclass(frozen=True, kw_only=True)
class SearchRecipe:
    """How texts are cut, encoded and indexed.

    Attributes:
        kind: auto, flat, ivf, ivfpq, bm25 or hybrid.
        words: most words of a passage.
        dim: numbers in a vector.
        text_field: column or key with the text of tables.
    """

    kind: str = "auto"
    words: int = 128
    dim: int = 128
    text_field: str = ""


def read_recipe(path: Path | None, kind: str, texts: TextFlags) -> SearchRecipe:
    """Return the recipe in a file, or that of the options.

    Args:
        path: TOML file, None for the options.
        kind: kind of index.
        texts: how texts are cut and encoded.

    Returns:
        The recipe.

    Raises:
        ConfigError: the file is missing, or a field is unknown or of another kind.
    """
    if path is not None:
        return load(path, SearchRecipe)
    return SearchRecipe(kind=kind, **asdict(texts))


def build_texts(
    sources: Sequence[Path],
    out: Path | None,
    recipe: SearchRecipe,
    *,
    encoder: Path | None = None,
    plan: str = "",
    seed: int,
    report: Path | None,
    json: bool,
) -> None:
    """Build an index of texts and print what was done.

    Args:
        sources: files and folders.
        out: folder for the index; one in the user's own folder when None.
        recipe: how texts are cut, encoded and indexed.
        encoder: folder of a tower of documents; None for an encoder fitted on the texts.
        plan: run of `steelyard plan retriever --keep`; empty for none.
        seed: seed of all draws.
        report: HTML file for the page.
        json: print JSON instead of a table.
    """
    folder = (out or _default_folder(sources)).expanduser().resolve()
    options = CorpusOptions(
        kind=recipe.kind,
        words=recipe.words,
        dim=recipe.dim,
        text_field=recipe.text_field,
        seed=seed,
    )
    tower = _tower(encoder) if encoder else None
    with _bars(quiet=json) as note:
        built = build_corpus(folder, sources, options, encoder=tower, progress=note)
    said = built.forecast.forecasts(past_checks(TEXT_FORECASTER)) if built.forecast else []
    write_json(_latest_path(), {"index": str(folder)})
    checks = checked(said, built.measured)
    keep_checks(checks, TEXT_FORECASTER)
    if plan:
        checks = [*checks, *_planned(plan, built)]
    print_report(_page(built, checks), json=json, html=report, values=_values(built, checks))
    if not json:
        say_next("retrieve", "search", "what you look for")


def _planned(plan: str, built: CorpusBuild) -> list[Check]:
    """Compare an index whose documents' tower also asks with its plan."""
    from steelyard.cli.retrieve.planned import check_retriever
    from steelyard.cli.retrieve.search_texts import asking_parameters
    from steelyard.retrieve.corpus.pilot import measure_corpus

    measured = built.measured or measure_corpus(built.index.store, 0.0)
    return check_retriever(plan, built.index, measured, asking_parameters(built.index))


def _tower(folder: Path) -> "TowerEncoder":
    """Return the tower of documents in a folder."""
    from steelyard.retrieve.towers import TowerEncoder, load_encoder

    found = load_encoder(folder)
    if not isinstance(found, TowerEncoder):
        raise ConfigError(
            f"--encoder {folder} is a tower of queries for documents of {found.fingerprint}",
            hint="build with the tower of documents, and give this one to `steelyard retrieve "
            "search --encoder`",
        )
    return found


def latest_index() -> Path:
    """Return the folder of the index of texts that was built last.

    Returns:
        The folder.

    Raises:
        DataError: none was built, or it is no more.
    """
    try:
        folder = Path(read_json(_latest_path())["index"])
    except (DataError, KeyError, TypeError) as error:
        raise DataError(
            "no index of texts was built yet", hint="build one: steelyard retrieve build FOLDER"
        ) from error
    if not folder.is_dir():
        raise DataError(
            f"the index that was built last, {folder}, is no more",
            hint="build it again, or name another with --index",
        )
    return folder


def _latest_path() -> Path:
    return user_dir() / "retrieve" / "latest.json"


def _default_folder(sources: Sequence[Path]) -> Path:
    """Return a folder of the user's own that belongs to some sources."""
    paths = sorted(str(Path(source).expanduser().resolve()) for source in sources)
    mark = hashlib.sha256("\n".join(paths).encode()).hexdigest()[:8]
    return user_dir() / "retrieve" / f"{Path(paths[0]).name or 'all'}-{mark}"


@contextmanager
def _bars(*, quiet: bool) -> Iterator[CorpusProgress]:
    """Yield what shows the stages of a build as one bar."""
    with progress("build", total=float(len(_STAGES)), quiet=quiet) as advance:
        yield _Stages(advance)


class _Stages:
    """Turns stages and their shares into one bar."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance

    def __call__(self, stage: str, share: float) -> None:
        self._advance(_STAGES.index(stage) + share, f"{stage} {share:.0%}")


def _page(built: CorpusBuild, checks: Sequence[Check]) -> Report:
    """Say what was built."""
    index, record = built.index, built.index.record
    files = f"{built.read:,} read, {built.unchanged:,} unchanged, {built.removed:,} removed"
    facts = [
        ("passages", f"{len(index):,} of {len(record.files):,} files", ""),
        ("files", files, ""),
        ("encoded", f"{built.encoded:,} passages, {built.reused:,} known before", ""),
        ("on disk", pretty(index.disk_bytes(), "byte"), "measured"),
        ("time", pretty(sum(built.stage_s.values()), "s"), "measured"),
    ]
    notes = [Text(f"Index: {_line(built, checks)}.")]
    if record.made_queries:
        found = ", ".join(f"{name} {value:.2f}" for name, value in record.found.items())
        told = f"{index.store.shape.fusion.told()}; reciprocal rank of sentences: {found}"
        notes.append(Text(f"Weights (measured): {told}."))
    if built.skipped.counts:
        notes.append(Text(f"Left out: {built.skipped.told()}."))
    # Sentences stand below the figures: a card holds a number with its unit.
    sections = [Section("Texts", [Facts(facts), *notes])]
    if checks:
        sections.append(Section("Forecasts", [Checks(list(checks))]))
    if built.weighed and built.weighed.candidates and built.forecast and built.measured:
        said_s, came_s = built.forecast.ways_s, built.measured.ways_s
        picture = ways_chart(built.weighed.candidates, built.weighed.fusion, said_s, came_s)
        sections.append(Section("Weights", [Chart(picture)]))
    return Report("Index of texts", str(index.folder), sections)


def _line(built: CorpusBuild, checks: Sequence[Check]) -> str:
    """Say in one line what was chosen, why, and what a search was forecast to take and takes."""
    told = f"{built.index.store.shape.name}: {built.why}"
    for item in checks:
        if item.forecast.quantity == "retrieve.search_p50":
            said, took = pretty(item.forecast.value, "s"), pretty(item.measurement.value, "s")
            told += f"; a search takes {took}, forecast {said}"
    return told


def _values(built: CorpusBuild, checks: Sequence[Check]) -> dict[str, Any]:
    """Return the figures, for programs."""
    index = built.index
    return {
        "index": str(index.folder),
        "kind": index.store.shape.name,
        "passages": len(index),
        "files": len(index.record.files),
        "read": built.read,
        "unchanged": built.unchanged,
        "removed": built.removed,
        "encoded": built.encoded,
        "reused": built.reused,
        "skipped": dict(built.skipped.counts),
        "fusion": asdict(index.store.shape.fusion),
        "found": index.record.found,
        "seconds": built.stage_s,
        "disk_bytes": index.disk_bytes(),
        "why": built.why,
        "checks": check_values(checks),
    }
