"""`steelyard data prepare|show|cache|inspect`: token shards of text and caches of tasks."""

import shlex
import sys
import sysconfig
from pathlib import Path
from typing import Annotated

import cyclopts

from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.data.manifest import Manifest, read_manifest, verify
from steelyard.errors import ConfigError
from steelyard.runs.progress import progress
from steelyard.runs.report import Column, Facts, Report, Section, Table
from steelyard.units import parse, pretty

_Paths = Annotated[
    Path, cyclopts.Parameter(help="Files and folders of text; a terminal is asked for them.")
]
"""The help of arguments that may be many stands here: it is not read from a docstring."""
_STAGES = ("read", "deduplicate", "tokenizer", "pack")
"""What preparing text does, in order."""


def prepare(
    *paths: _Paths,
    out: Path,
    vocab_size: int = 2048,
    heldout_fraction: float = 0.02,
    max_bytes: str = "",
    seed: int = 0,
    json: Switch = False,
) -> None:
    """Make token shards from files and folders; run it again to continue after a kill.

    Example: steelyard data prepare texts --out tokens --vocab-size 4096

    Args:
        *paths: files and folders of text; a terminal is asked for them where none is given.
        out: folder for the shards.
        vocab_size: most tokens of the tokenizer, 257 or more.
        heldout_fraction: share of the bytes held out for evaluation.
        max_bytes: amount of clean text to stop at, such as "24 MB"; empty to read all.
        seed: seed that chooses the held-out documents.
        json: print JSON instead of a table.
    """
    # A question that waits for its answer comes before libraries are loaded.
    named = list(paths) or _asked()
    from steelyard.data import text

    limit = int(parse(max_bytes, "byte", where="--max-bytes")) if max_bytes else None
    sources = named or text.default_sources()
    with progress("prepare text", quiet=json) as advance:
        manifest = text.prepare(
            sources,
            out,
            vocab_size=vocab_size,
            heldout_fraction=heldout_fraction,
            seed=seed,
            max_bytes=limit,
            progress=lambda stage, share: advance(
                (_STAGES.index(stage) + share) / len(_STAGES), stage
            ),
        )
    _show(out, manifest, json)
    if not json:
        say_next("data", "show", out)


def _asked() -> list[Path]:
    """Ask a terminal for files and folders; none means this Python's own texts."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            "data prepare needs files or folders of text",
            hint="steelyard data prepare texts --out tokens; this Python's own texts lie in "
            f"{sysconfig.get_path('stdlib')}",
        )
    sys.stderr.write("files and folders of text (none: this Python's own texts): ")
    sys.stderr.flush()
    return [Path(word).expanduser() for word in shlex.split(sys.stdin.readline())]


def show(directory: Path, *, json: Switch = False) -> None:
    """Check the hashes of a folder of token shards and show what it holds.

    Example: steelyard data show tokens

    Args:
        directory: folder that `steelyard data prepare` made.
        json: print JSON instead of a table.
    """
    manifest = read_manifest(directory)
    verify(directory, manifest)
    _show(directory, manifest, json)


def cache(
    recipe: Path,
    *,
    out: Path,
    task: str = "",
    workers: int = 0,
    cluster: str = "",
    json: Switch = False,
) -> None:
    """Prepare the tasks of a recipe once; run it again to continue after a kill.

    Example: steelyard data cache recipes/mixture.toml --out caches

    Args:
        recipe: TOML or JSON file with tasks; see recipes/mixture.toml.
        out: folder that gets one folder per task.
        task: name of the only task to prepare; empty for all.
        workers: processes; 0 for one per core.
        cluster: address of a Ray cluster that does the work; empty for this machine.
        json: print JSON instead of a table.
    """
    from steelyard.cli.data.caches import caches_report
    from steelyard.data.tasks.cache import write_cache
    from steelyard.data.tasks.recipe import load_recipe

    found = load_recipe(recipe)
    chosen = {name: found.task(name) for name in ([task] if task else found.tasks)}
    for name, item in chosen.items():
        with progress(f"cache {name}", quiet=json) as advance:
            write_cache(
                item,
                out / name,
                workers=workers or None,
                progress=lambda share, name=name: advance(share, name),
                cluster=cluster,
            )
    print_report(caches_report({name: out / name for name in chosen}), json=json)
    if not json:
        say_next("data", "inspect", recipe, "--cache", out)


def inspect(
    path: Path,
    *,
    name: str = "",
    cache: Path | None = None,
    length: int = 512,
    seed: int = 0,
    json: Switch = False,
) -> None:
    """Show what caches hold, or the stream that a recipe's task or mixture makes.

    Example: steelyard data inspect recipes/mixture.toml --cache caches --length 1024

    Args:
        path: folder of caches, or a recipe.
        name: task or mixture of the recipe; empty for its last mixture, or its only task.
        cache: folder that `steelyard data cache` made of the recipe; without it records are read
            from their sources.
        length: tokens of a row.
        seed: seed of the order.
        json: print JSON instead of tables.
    """
    from steelyard.cli.data.caches import caches_in, caches_report, stream_report
    from steelyard.data.tasks.recipe import load_recipe

    if path.is_dir():
        print_report(caches_report(caches_in(path)), json=json)
        return
    recipe = load_recipe(path)
    names = list(recipe.mixtures) or list(recipe.tasks)
    chosen = name or names[-1]
    print_report(stream_report(chosen, recipe.open(chosen, cache), length, seed), json=json)


def _show(directory: Path, manifest: Manifest, json: bool) -> None:
    """Print a manifest."""
    dropped = manifest.documents_dropped | {
        f"file {reason}": count for reason, count in manifest.files_skipped.items()
    }
    facts = [
        ("documents", f"{manifest.documents:,} from {manifest.files_read:,} files", "measured"),
        ("text", pretty(manifest.text_bytes, "byte"), "measured"),
        ("training tokens", f"{manifest.num_tokens:,}", "measured"),
        (
            "held-out tokens",
            f"{manifest.num_heldout_tokens:,} of {manifest.heldout_documents:,} documents",
            "measured",
        ),
        ("bytes per token", f"{manifest.bytes_per_token:.3f}", "measured"),
        ("vocabulary", f"{manifest.vocab_size:,} tokens, stored as {manifest.dtype}", ""),
        ("duplicates", f"{manifest.duplicate_fraction:.2%} of the documents", "measured"),
    ]
    files = [
        [shard.name, shard.tokens, shard.sha256[:16]]
        for shard in (*manifest.train, *manifest.heldout)
    ]
    heads = [Column("file"), Column("tokens", "token"), Column("SHA-256")]
    sections = [
        Section("Text", [Facts(facts)]),
        Section("Files", [Table(heads, files, "All hashes agree.")]),
    ]
    if dropped:
        rows = [[reason, count] for reason, count in dropped.items()]
        sections.insert(1, Section("Dropped", [Table([Column("reason"), Column("count")], rows)]))
    report = Report(f"Token shards in {directory}", f"seed {manifest.seed}", sections)
    print_report(report, json=json)
