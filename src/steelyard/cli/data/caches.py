"""What `steelyard data cache` and `steelyard data inspect` show of caches and mixtures."""

from pathlib import Path

from steelyard.data.convert import Converter, LanguageModel, SequenceToSequence
from steelyard.data.loader import Loader, can_pack
from steelyard.data.tasks.cache import CACHE, CacheInfo, read_info
from steelyard.data.tasks.cached import verify_cache
from steelyard.data.tasks.mixture import TaskMixture
from steelyard.data.tasks.task import Examples
from steelyard.errors import DataError
from steelyard.runs.report import Column, Facts, Report, Section, Table
from steelyard.units import pretty

__all__ = ["caches_in", "caches_report", "stream_report"]

_ROWS_SHOWN, _WIDTH_SHOWN = 3, 200


def caches_in(folder: Path) -> dict[str, Path]:
    """Find the caches of a folder.

    Args:
        folder: a cache, or a folder with one per task.

    Returns:
        Folders by the names of their tasks.

    Raises:
        DataError: there is none.
    """
    found = [folder] if (folder / CACHE).is_file() else []
    found += sorted(path.parent for path in folder.glob(f"*/{CACHE}"))
    if not found:
        raise DataError(
            f"folder {folder} holds no finished cache",
            hint="make one with: steelyard data cache RECIPE --out DIR",
        )
    return {read_info(path).task: path for path in found}


def caches_report(folders: dict[str, Path]) -> Report:
    """Check the hashes of caches and show what they hold.

    Args:
        folders: folder of each task's cache.

    Returns:
        The report.

    Raises:
        DataError: a file is missing or differs from its hash.
    """
    sections = []
    for name, folder in folders.items():
        info = read_info(folder)
        verify_cache(folder, info.shards)
        sections.append(Section(name, [Facts(_facts(folder, info)), _lengths(info)]))
    return Report("Caches", "all hashes agree", sections)


def _facts(folder: Path, info: CacheInfo) -> list[tuple[str, str, str]]:
    """List what a cache was made of."""
    records = sum(shard.records for shard in info.shards)
    dropped = sum(shard.dropped for shard in info.shards)
    size = sum((folder / shard.name).stat().st_size for shard in info.shards)
    return [
        ("folder", str(folder), ""),
        (
            "examples",
            f"{info.examples:,} from {records:,} records, {dropped:,} dropped",
            "measured",
        ),
        ("shards", f"{len(info.shards):,} of {pretty(size, 'byte')} in all", "measured"),
        ("preprocessing", info.key[:16], ""),
    ]


def _lengths(info: CacheInfo) -> Table:
    """Tell how long examples are, by field."""
    heads = [Column(name) for name in ("field", "kind", "total", "shortest", "mean", "longest")]
    # A shard whose records were all dropped knows no kinds.
    kinds = next(shard.kinds for shard in info.shards if shard.examples)
    rows = [
        [name, kinds[name], item.total, item.shortest, item.total / info.examples, item.longest]
        for name, item in info.statistics.items()
    ]
    return Table(heads, rows, "Lengths in tokens, or in bytes of text.")


def stream_report(name: str, data: Examples | TaskMixture, length: int, seed: int) -> Report:
    """Show the stream that a loader makes: shares, passes, packing, and the first rows.

    Args:
        name: name of the task or mixture.
        data: what is loaded.
        length: tokens of a row.
        seed: seed of the order.

    Returns:
        The report.
    """
    tasks = data.tasks if isinstance(data, TaskMixture) else [data]
    converter: Converter = LanguageModel(length=length)
    if "inputs" in tasks[0].features:
        converter = SequenceToSequence(inputs=length, targets=length)
    # As a run would load them, so that the page shows the rows that a run sees.
    pack = can_pack(data)
    loader = Loader(data, converter, _ROWS_SHOWN, seed=seed, pack=pack)
    sections = [
        Section("Tasks", [_shares(tasks, loader)]),
        Section("First rows", [_first_rows(tasks, loader)]),
    ]
    packed = f"packed into rows of {length}" if pack else "one example a row"
    return Report(f"Stream of {name}", f"{packed}, seed {seed}", sections)


def _shares(tasks: list[Examples], loader: Loader) -> Table:
    """Tell each task's part in the stream."""
    heads = [Column("task"), Column("examples"), Column("rows"), Column("share of rows")]
    heads += [Column("first pass ends at row"), Column("places filled"), Column("tokens cut off")]
    rows = []
    for task in tasks:
        packed = loader.packed.get(task.name)
        size = len(packed) if packed else len(task)
        share = loader.rates[task.name]
        filled = (f"{packed.efficiency:.2%}", packed.cut_tokens) if packed else ("", "")
        rows.append([task.name, len(task), size, f"{share:.3%}", round(size / share), *filled])
    note = "" if loader.packed else "Rows are packed where every task is cached and keeps lengths."
    return Table(heads, rows, note)


def _first_rows(tasks: list[Examples], loader: Loader) -> Table:
    """Write out the text of the first rows."""
    by_name = {task.name: task for task in tasks}
    batch = loader.batch(0)
    lines = []
    for place, row in enumerate(loader.rows(0)):
        features = by_name[row.task].features
        for field, array in batch.items():
            stream, _, kind = field.rpartition("_")
            # A decoder's inputs are its targets moved by one: one of the two is enough.
            if kind == ("inputs" if stream == "encoder" else "targets"):
                where = f"{stream}_segments" if stream else "segments"
                segments = batch[where][place]
                parts = [array[place][segments == number + 1] for number in range(segments.max())]
                text = " | ".join(map(features["targets"].vocabulary.decode, parts))
                size = int((segments > 0).sum())
                lines.append([row.task, len(row.examples), field, size, repr(text[:_WIDTH_SHOWN])])
    heads = [Column(name) for name in ("task", "examples", "stream", "tokens", "begins with")]
    return Table(heads, lines)
