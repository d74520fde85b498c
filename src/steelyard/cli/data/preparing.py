"""`steelyard data table transform` and `split`: features by a recipe, and rows kept aside."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.cli.data.scanned import Sources, kinds_of, names_of, scanned
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.runs.progress import progress
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table, Text
from steelyard.units import pretty, pretty_duration

if TYPE_CHECKING:
    from steelyard.data.pipeline import FittedPipeline
    from steelyard.data.pipeline.planning import PipelinePlan
    from steelyard.data.pipeline.recipe import PipelineRecipe
    from steelyard.data.table import DataTable, Quarantine

__all__ = ["split", "transform"]


def transform(
    *sources: Sources,
    out: Path | None = None,
    recipe: Path | None = None,
    fitted: Path | None = None,
    save: Path | None = None,
    parts: str = "",
    types: str = "",
    memory: str = "",
    workers: int = 1,
    journal: Path | None = None,
    lineage: Path | None = None,
    dry_run: Switch = False,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Fit the steps of a recipe to a table and write what they make of it.

    With a [split] in the recipe, steps learn from its first share alone, and each share is written
    to a file of its own. Rows that a step sets aside stand beside it in NAME.quarantine.csv.

    Example: steelyard data table transform 'sales/*.csv' --recipe recipes/pipeline.toml --out
    features.parquet

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        out: file for the rows: .parquet, .arrow, .csv or .jsonl; a folder with --parts.
        recipe: TOML file with the steps, such as recipes/pipeline.toml.
        fitted: pipeline of an earlier call, which is applied as it is.
        save: file for the fitted pipeline; beside the rows as NAME.pipeline when left out.
        parts: end of the names of files in a folder, one for each part of the table, such as
            .parquet; these are written by all workers.
        types: kinds of columns of text files, such as "id=text, price=number".
        memory: most bytes that rows and states may take, such as 200MB.
        workers: processes.
        journal: folder that keeps what is finished; after a kill the same line goes on there.
        lineage: folder that remembers what each file was made of, for `steelyard data govern`.
        dry_run: stop after the plan: passes, bytes, memory and time.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    if (recipe is None) == (fitted is None):
        raise ConfigError("give either --recipe or --fitted", hint="such as --recipe steps.toml")
    if out is None and not dry_run:
        raise ConfigError("--out is missing", hint="such as --out features.parquet")
    table = scanned(sources, kinds_of(types))
    given = _read(recipe)
    if dry_run:
        _print_plan(table, given, memory, json=json, report=report)
        return
    assert out is not None
    from steelyard.data.table.once import parsed_beside

    with ExitStack() as opened:
        if given is not None:
            # It is read at least twice: to learn, and to write.
            table = opened.enter_context(parsed_beside(table, out))
        job = _TransformJob(table, out, parts, memory, workers, lineage)
        pipeline = job.fitted(given, fitted, save, journal, quiet=json)
        job.write(given, pipeline, quiet=json)
    page = Report(f"Features in {out}", f"by {len(pipeline.steps)} steps", job.sections(pipeline))
    print_report(page, json=json, html=report, values=job.values(pipeline))
    if not json and fitted is None:
        say_next("data", "table", "transform", "NEW.csv", "--fitted", job.saved, "--out", "new.csv")


def _read(recipe: Path | None) -> "PipelineRecipe | None":
    """Read a recipe, where there is one."""
    from steelyard.data.pipeline.recipe import read_recipe

    return read_recipe(recipe) if recipe is not None else None


class _TransformJob:
    """One call of `transform`."""

    def __init__(
        self,
        table: "DataTable",
        out: Path,
        parts: str,
        memory: str,
        workers: int,
        lineage: Path | None,
    ) -> None:
        self.table, self.out, self.parts = table, out, parts
        self.memory, self.workers, self.lineage = memory, workers, lineage
        self.saved: Path | None = None
        self.written: dict[str, tuple[Path, int, Quarantine]] = {}
        self.warnings: list[str] = []

    def fitted(
        self,
        recipe: "PipelineRecipe | None",
        fitted: Path | None,
        save: Path | None,
        journal: Path | None,
        *,
        quiet: bool,
    ) -> "FittedPipeline":
        """Fit a pipeline and save it, or read one."""
        from steelyard.data.pipeline import FittedPipeline

        if recipe is None:
            assert fitted is not None
            self.saved = fitted
            return FittedPipeline.open(fitted)
        learned = self._shares(recipe)[0][1]
        size = max(sum(part.num_bytes for part in self.table.partitions), 1)
        with progress("fit", quiet=quiet) as advance:
            read = [0.0]

            def done(scan: int, num_bytes: int) -> None:
                read[0] += num_bytes
                advance(read[0] / size, f"pass {scan}")

            made = recipe.pipeline.fit(
                learned,
                memory=self.memory or None,
                workers=self.workers,
                journal=journal,
                done=done,
            )
        self.saved = save or self.out.with_name(self.out.name.split(".")[0] + ".pipeline")
        made.save(self.saved)
        return made

    def _shares(self, recipe: "PipelineRecipe | None") -> "list[tuple[str, DataTable]]":
        """Return the table, or the shares of the split of a recipe."""
        if recipe is None or recipe.split is None:
            return [("", self.table)]
        found = recipe.split.split(self.table, memory=self.memory or None)
        self.warnings = list(found.warnings)
        return list(found.tables.items())

    def write(
        self, recipe: "PipelineRecipe | None", pipeline: "FittedPipeline", *, quiet: bool
    ) -> None:
        """Write what the pipeline makes of each share."""
        from steelyard.data.table.budget import FoldBudget
        from steelyard.units import parse

        with progress("write", quiet=quiet):
            for place, (name, share) in enumerate(self._shares(recipe)):
                training = recipe is not None and place == 0
                made = pipeline.transform(share, training=training)
                if self.memory:
                    room = parse(self.memory, "byte")
                    made = made.with_limits(FoldBudget.to_write(made, room))
                path = _named(self.out, name)
                rows, quarantine = self._write_one(made, path)
                self.written[name or "all"] = path, rows, quarantine
                self._remember(path, recipe, name, training=training)

    def _write_one(self, made: "DataTable", path: Path) -> "tuple[int, Quarantine]":
        """Write one table, and the rows that are set aside."""
        from steelyard.data.table.cleaning import quarantine_path
        from steelyard.data.table.part_files import write_with_quarantine

        if not self.parts:
            return write_with_quarantine(made, path, quarantine_path(path))
        return made.write(path, parts=self.parts, workers=self.workers)

    def _remember(
        self, path: Path, recipe: "PipelineRecipe | None", share: str, *, training: bool
    ) -> None:
        """Enter a file in the lineage."""
        if self.lineage is None or self.saved is None:
            return
        from steelyard.config import to_plain
        from steelyard.data.governance import Lineage

        inputs = [Path(item.path) for item in self.table.files]
        rule = to_plain(recipe.split) if recipe is not None and recipe.split else None
        how = {"training": training, "split": rule, "share": share}
        Lineage(self.lineage).record(path, inputs, pipeline=self.saved, **how)

    def sections(self, pipeline: "FittedPipeline") -> list[Section]:
        """Return the page."""
        from steelyard.cli.data.profile_page import quarantine_table

        facts = [
            ("steps", f"{len(pipeline.steps):,}", ""),
            ("learned from", f"{pipeline.rows:,} rows in {pipeline.scans} passes", ""),
            ("pipeline", f"{self.saved}", pipeline.key),
        ]
        rows: list[list[Cell]] = [
            [name, str(path), f"{count:,}", f"{quarantine.total:,}"]
            for name, (path, count, quarantine) in self.written.items()
        ]
        heads = [Column("rows"), Column("file"), Column("written", align="right")]
        heads.append(Column("set aside", align="right"))
        lines = [Text(line) for line in (*self.warnings, *pipeline.warnings, *self.table.drift)]
        found = [Section("Pipeline", [Facts(facts), *lines]), Section("Rows", [Table(heads, rows)])]
        for name, (_, _, quarantine) in self.written.items():
            if quarantine.total:
                title = "Rows set aside" + (f" of {name}" if len(self.written) > 1 else "")
                found.append(Section(title, [quarantine_table(quarantine)]))
        return found

    def values(self, pipeline: "FittedPipeline") -> dict[str, Any]:
        """Return all figures, for programs."""
        return {
            "pipeline": str(self.saved),
            "key": pipeline.key,
            "steps": [type(step).__name__ for step in pipeline.steps],
            "rows": pipeline.rows,
            "passes": pipeline.scans,
            "warnings": [*self.warnings, *pipeline.warnings],
            "written": {
                name: {"out": str(path), "rows": count, "set_aside": quarantine.total}
                for name, (path, count, quarantine) in self.written.items()
            },
        }


def _named(out: Path, share: str) -> Path:
    """Return the file of a share: "features-train.parquet" for "features.parquet"."""
    if not share:
        return out
    first, dot, rest = out.name.partition(".")
    return out.with_name(f"{first}-{share}{dot}{rest}")


def _print_plan(
    table: "DataTable",
    recipe: "PipelineRecipe | None",
    memory: str,
    *,
    json: bool,
    report: Path | None,
) -> None:
    """Print what fitting takes."""
    if recipe is None:
        raise ConfigError("--dry-run plans the fit of a --recipe; --fitted reads the table once")
    from steelyard.data.pipeline.planning import plan_fit

    plan: PipelinePlan = plan_fit(recipe.pipeline, table, memory=memory or None)
    names = [str(step["kind"]) for step in recipe.step]
    rows: list[list[Cell]] = [
        [
            f"{place}",
            ", ".join(names[at] for at in item.steps),
            f"{len(item.columns):,}",
            pretty(item.num_bytes, "byte"),
            pretty(item.state_bytes, "byte"),
            pretty(item.batch_bytes, "byte"),
            pretty_duration(item.duration_s),
        ]
        for place, item in enumerate(plan.passes, 1)
    ]
    heads = ("columns", "reads", "states", "rows in flight", "takes")
    columns = [Column("pass"), Column("learns"), *(Column(head, align="right") for head in heads)]
    facts = Facts(
        [
            ("passes", f"{len(plan.passes)}", ""),
            ("reads", pretty(plan.num_bytes, "byte"), ""),
            ("memory", pretty(plan.memory_bytes, "byte"), "beyond the libraries"),
            ("takes", pretty_duration(plan.duration_s), "one core, by a pilot on the first part"),
        ]
    )
    page = Report(
        "Plan of a pipeline",
        f"{len(recipe.step)} steps on {pretty(table.num_bytes, 'byte')}",
        [Section("Fit", [facts, Table(columns, rows)])],
    )
    values = _plan_values(plan, names)
    print_report(page, json=json, html=report, values=values)


def _plan_values(plan: "PipelinePlan", names: list[str]) -> dict[str, Any]:
    """Return all figures of a plan, for programs."""
    return {
        "passes": [
            {
                "steps": [names[at] for at in item.steps],
                "columns": list(item.columns),
                "num_bytes": item.num_bytes,
                "state_bytes": item.state_bytes,
                "batch_bytes": item.batch_bytes,
                "duration_s": item.duration_s,
            }
            for item in plan.passes
        ],
        "num_bytes": plan.num_bytes,
        "memory_bytes": plan.memory_bytes,
        "duration_s": plan.duration_s,
    }


def split(
    *sources: Sources,
    out: Path,
    shares: str = "train=0.8, test=0.2",
    by: str = "",
    stratify: str = "",
    time: str = "",
    seed: int = 0,
    types: str = "",
    memory: str = "",
    json: Switch = False,
) -> None:
    """Write the rows of a table to files by share; each row decides itself where it goes.

    The hash of a row's key says where it goes, so that files, their order and other rows do not
    matter. Rows of one key stay together.

    Example: steelyard data table split 'sales/*.csv' --by customer --out sales.parquet

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        out: name of the files: sales.parquet makes sales-train.parquet and sales-test.parquet.
        shares: share by name, which add up to at most 1.
        by: columns of the key, separated by commas; whole rows when left out.
        stratify: column of classes, of which each share has its part.
        time: column of times, in place of a key: the first share holds the earliest rows.
        seed: changes which keys go where.
        types: kinds of columns of text files, such as "id=text, price=number".
        memory: most bytes of a pass that finds classes or times, such as 200MB.
        json: print JSON instead of a table.
    """
    from steelyard.data.pipeline.recipe import SplitRule
    from steelyard.data.table.cleaning import quarantine_path
    from steelyard.data.table.part_files import write_with_quarantine

    table = scanned(sources, kinds_of(types))
    key = tuple(names_of(by))
    rule = SplitRule(shares=_shares_of(shares), by=key, stratify=stratify, time=time, seed=seed)
    found = rule.split(table, memory=memory or None)
    written: dict[str, tuple[Path, int, int]] = {}
    with progress("split", quiet=json):
        for name, share in found.tables.items():
            path = _named(out, name)
            rows, quarantine = write_with_quarantine(share, path, quarantine_path(path))
            written[name] = path, rows, quarantine.total
    total = sum(count for _, count, _ in written.values()) or 1
    rows_shown: list[list[Cell]] = [
        [name, str(path), f"{count:,}", f"{count / total:.2%}"]
        for name, (path, count, _) in written.items()
    ]
    heads = [Column("share"), Column("file"), Column("rows", align="right")]
    blocks = [Table([*heads, Column("of all", align="right")], rows_shown)]
    warnings = [*found.warnings, *_empty_shares(written)]
    lines = [Text(line) for line in warnings]
    if any(bad for _, _, bad in written.values()):
        lines.append(Text("rows that broke a rule stand beside each file"))
    page = Report("Split", f"{total:,} rows", [Section("Files", [*blocks, *lines])])
    values = {
        name: {"out": str(path), "rows": count, "set_aside": bad}
        for name, (path, count, bad) in written.items()
    } | {"warnings": warnings}
    print_report(page, json=json, html=None, values=values)


def _empty_shares(written: Mapping[str, tuple[Path, int, int]]) -> list[str]:
    """Say which shares got no row: few keys can all fall to the others."""
    return [
        f"{name} has no row: no key fell into it; name more columns, or another seed"
        for name, (_, count, _) in written.items()
        if not count
    ]


def _shares_of(given: str) -> dict[str, float]:
    """Return shares from "train=0.8, test=0.2"."""
    found = {}
    for part in filter(None, (part.strip() for part in given.split(","))):
        name, _, share = part.partition("=")
        try:
            found[name.strip()] = float(share)
        except ValueError:
            raise ConfigError(
                f"--shares has {part!r}, but each part is a name and a share",
                hint='such as --shares "train=0.8, test=0.2"',
            ) from None
    return found
