"""`steelyard data logs`: templates of log files, archives that are searched, sessions apart."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts

from steelyard.cli.output import Switch, print_json, print_report
from steelyard.config import load
from steelyard.errors import BackendError, ConfigError, DataError

if TYPE_CHECKING:
    from steelyard.data.logs import LogTable

__all__ = ["app"]

app = cyclopts.App(name="logs", help="Parse, watch, compress and search logs; find odd sessions.")
_Sources = Annotated[str, cyclopts.Parameter(help="Logs, patterns such as 'logs/*.gz', folders.")]
"""The help of arguments that may be many stands here: it is not read from a docstring."""
_Kind = Literal["pca", "invariants", "iforest", "clusters", "ngram"]


@app.command
def parse(
    *sources: _Sources,
    format: str | None = None,
    seeds: Path | None = None,
    templates: Path | None = None,
    out: Path | None = None,
    recipe: Path | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    journal: Path | None = None,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Find the templates of logs in one pass, and write the lines as a table in a second one.

    Example: steelyard data logs parse app.log --out app.parquet --report app.html

    Args:
        *sources: logs, patterns such as 'logs/*.gz', folders.
        format: header of the lines, such as "<Date> <Time> <Level> <Component>: <Content>", or the
            name of a known one, such as HDFS; "" for none. Without it the one that fits is taken.
        seeds: file of templates that are known, one a line, <*> where a variable stands.
        templates: file that keeps the templates; those that are in it already are grown.
        out: Parquet file for the lines: fields of the header, template and its parameters.
        recipe: TOML file of format, known templates, processes and cluster, such as
            recipes/data-logs.toml; what is given on the line counts before it.
        workers: processes that read parts of the logs; templates do not depend on it.
        cluster: Ray address that the logs are read on, such as auto; files must be found there too.
        journal: folder that keeps finished parts; after a kill the same line goes on there.
        json: print JSON instead of tables.
        report: HTML file for the page, with the templates over time.
    """
    from steelyard.cli.data.log_pages import parse_page, parse_values
    from steelyard.data.logs import ParseSettings, TemplateSet, find_templates, write_parsed

    if workers is not None and workers < 1:
        raise ConfigError(f"--workers is {workers}, but must be 1 or more")
    asked = load(recipe, ParseSettings) if recipe else ParseSettings()
    given = {"format": format, "workers": workers, "cluster": cluster}
    asked = replace(asked, **{name: value for name, value in given.items() if value is not None})
    known = TemplateSet.load(templates) if templates and templates.exists() else None
    table = _scanned(sources, asked.format)
    found, lines = find_templates(
        table,
        seeds=[*asked.seeds, *_lines_of(seeds), *(known.seeds if known else ())],
        known=known.state if known else None,
        workers=asked.workers,
        cluster=asked.cluster,
        journal=journal,
    )
    parsed = write_parsed(table, found, lines, out)
    if templates:
        found.templates.save(templates)
    print_report(
        parse_page(table, parsed), json=json, html=report, values=parse_values(table, parsed)
    )


def _scanned(sources: tuple[str, ...], format: str | None) -> "LogTable":
    """Look at logs; the library that holds their columns is an extra."""
    if not sources:
        raise ConfigError("data logs needs files", hint="steelyard data logs parse app.log")
    _with_arrow()
    from steelyard.data.logs import LogTable

    return LogTable.scan(*sources, format=format)


def _with_arrow() -> None:
    """Refuse what needs Arrow where it is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise BackendError(
            "logs are held in Arrow's columns, which is not installed",
            hint="pip install 'steelyard[data]'",
        ) from error


def _lines_of(path: Path | None) -> list[str]:
    """Return the lines of a file that are not empty."""
    if path is None:
        return []
    try:
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the templates in {path}: {error}") from error


@app.command
def watch(
    log: Path,
    *,
    templates: Path,
    format: str | None = None,
    from_start: Switch = False,
    once: Switch = False,
    pause_s: float = 0.5,
    json: Switch = False,
) -> None:
    """Follow a log through rotation and tell of each line that no known template has.

    Example: steelyard data logs watch /var/log/app.log --templates app.templates

    Args:
        log: file to follow; it may come later, be renamed, or be cut to nothing.
        templates: file that `logs parse --templates` wrote.
        format: header of the lines, as for `logs parse`.
        from_start: read the lines that are there already, too.
        once: end after one look.
        pause_s: time between two looks, in seconds.
        json: print a line of JSON for each new line.
    """
    import msgspec

    from steelyard.data.logs import TemplateSet
    from steelyard.data.logs.watching import LogTail, NewLines

    if pause_s <= 0:
        raise ConfigError(f"--pause-s is {pause_s}, but must be more than 0")
    _with_arrow()
    judge = NewLines(TemplateSet.load(templates), format)
    tail = LogTail(log, from_start=from_start)
    try:
        for lines in tail.follow(pause_s, until=lambda: once):
            for text in judge.unknown(lines):
                print(msgspec.json.encode({"line": text}).decode() if json else text, flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        tail.close()
    told = {"lines": judge.lines, "unknown": judge.unknown_lines, "rotations": tail.rotations}
    if json:
        print(msgspec.json.encode(told).decode())
    else:
        print(
            f"{judge.lines:,} lines, {judge.unknown_lines:,} of no known template, "
            f"{tail.rotations} rotations"
        )


@app.command
def compress(log: Path, *, out: Path, format: str | None = None, json: Switch = False) -> None:
    """Write the archive of a log, from which it is put together to the last byte.

    Example: steelyard data logs compress app.log --out app.logpack

    Args:
        log: the log, compressed by gzip or not.
        out: archive to write.
        format: header of the lines, as for `logs parse`.
        json: print JSON.
    """
    from dataclasses import asdict

    _with_arrow()
    from steelyard.data.logs import compress as write

    done = write(log, out, format=format)
    if json:
        print_json(asdict(done))
    else:
        print(
            f"{done.lines:,} lines, {done.frames:,} frames, {done.raw_lines:,} lines kept as they "
            f"are: {done.num_bytes:,} bytes in {done.archive_bytes:,}, "
            f"1/{done.num_bytes / max(done.archive_bytes, 1):.1f}"
        )


@app.command
def decompress(archive: Path, *, out: Path) -> None:
    """Write the log of an archive.

    Example: steelyard data logs decompress app.logpack --out app.log

    Args:
        archive: what `logs compress` wrote.
        out: log to write.
    """
    _with_arrow()
    from steelyard.data.logs import LogArchive

    held = LogArchive(archive)
    held.unpack(out)
    print(f"{held.lines:,} lines, {held.num_bytes:,} bytes")


@app.command
def grep(
    archive: Path,
    pattern: str = "",
    *,
    template: str = "",
    count: Switch = False,
    json: Switch = False,
) -> None:
    """Print the lines of an archive that match; other templates' columns are not unpacked.

    Example: steelyard data logs grep app.logpack 'user=4[0-9]+' --template 'login failed'

    Args:
        archive: what `logs compress` wrote.
        pattern: regular expression that a line must hold.
        template: text that the template of a line must hold.
        count: print how many lines there are, and what share of the archive was read.
        json: print lines with their numbers as JSON.
    """
    import msgspec

    _with_arrow()
    from steelyard.data.logs import LogArchive

    held = LogArchive(archive)
    found = 0
    for number, text in held.grep(pattern, template):
        found += 1
        if count:
            continue
        shown = text.encode(errors="backslashreplace").decode()
        row = {"number": number, "line": shown}
        print(msgspec.json.encode(row).decode() if json else shown)
    if count:
        share = held.read_bytes / archive.stat().st_size
        told = {"lines": found, "read_bytes": held.read_bytes, "read_share": share}
        if json:
            print_json(told)
        else:
            print(f"{found:,} lines; {share:.1%} of the archive was read")


@app.command
def detect(
    *sources: _Sources,
    session: str = "",
    window: int = 100,
    kind: _Kind = "invariants",
    format: str | None = None,
    most: int = 20,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Show the sessions whose events are unlike those of others, each with reasons.

    Example: steelyard data logs detect hdfs.log --session 'blk_-?[0-9]+' --kind invariants

    Args:
        *sources: logs, patterns such as 'logs/*.gz', folders.
        session: regular expression of what names the session of a line, such as a job's number;
            without it, lines are taken in windows.
        window: lines of a window.
        kind: how sessions are judged.
        format: header of the lines, as for `logs parse`.
        most: sessions to show.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from steelyard.cli.data.log_pages import detect_page, detect_values
    from steelyard.data.logs.judging import judge_log

    if window < 2 or most < 1:
        raise ConfigError(f"--window is {window} and --most {most}: at least 2 and 1")
    judged = judge_log(_scanned(sources, format), session=session, window=window, kind=kind)
    print_report(
        detect_page(judged, most), json=json, html=report, values=detect_values(judged, most)
    )


@app.command
def bench(folder: Path, *, json: Switch = False) -> None:
    """Score the parser on labelled samples, beside Drain and Brain with their published settings.

    Example: steelyard data logs bench loghub-2k

    Args:
        folder: samples as Loghub has them: NAME_2k.log.gz, NAME_2k.log_structured.csv.gz and
            formats.json.
        json: print JSON instead of tables.
    """
    from steelyard.cli.data.log_pages import bench_page, bench_values
    from steelyard.data.logs.samples import score_samples

    _with_arrow()
    scores = score_samples(folder)
    print_report(bench_page(scores), json=json, values=bench_values(scores))


@app.command
def generate(
    *, out: Path, sessions: int = 1000, templates: int = 40, seed: int = 0, faults: float = 0.05
) -> None:
    """Write a log of sessions with known faults, and what they are.

    Example: steelyard data logs generate --out jobs.log --sessions 5000

    Args:
        out: log to write; faults stand beside it, in a file that ends in .faults.jsonl.
        sessions: how many jobs the log has.
        templates: how many there are.
        seed: seed of the draws.
        faults: share of jobs that have a fault, from 0 to 1.
    """
    from steelyard.data.logs.synthesis import write_sessions

    lines, faulty = write_sessions(out, sessions, templates, seed, faults)
    print(f"{lines:,} lines of {sessions:,} jobs, {faulty:,} with a fault")
