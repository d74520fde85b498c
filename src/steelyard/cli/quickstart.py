"""`steelyard quickstart`: the loop end to end on this machine."""

import sys
from pathlib import Path

from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch
from steelyard.cli.records import records_of
from steelyard.contention import other_work
from steelyard.files import writable_user_dir, write_bytes
from steelyard.runs.progress import progress
from steelyard.runs.report import Cell, Column, Section, Table
from steelyard.units import parse
from steelyard.weigh.settings import QuickstartConfig

__all__ = ["quickstart"]

_MUCH = 0.25
"""Processors busy with other work that are worth a word."""


def quickstart(
    *,
    text: tuple[Path, ...] = (),
    budget: str = "1e21FLOP",
    cluster: str = "JUWELS-Booster",
    minutes: float = 5.0,
    out: Path = Path("quickstart-out"),
    seed: int = 0,
    threads: int = 0,
    json: Switch = False,
) -> None:
    """Weigh this machine end to end: calibrate, train, forecast, serve, check and report.

    Example: steelyard quickstart --minutes 2 --out quickstart-out

    A small ladder of models is trained first, and a larger one is forecast from it. After a kill
    the same command continues where it was.

    Args:
        text: files or folders to learn from; by default the running Python's own library and
            documentation.
        budget: training compute of the plan, such as "1e21FLOP" or "3e23".
        cluster: cluster the plan is for; `steelyard catalog list clusters` shows them.
        minutes: wall time to aim at on this machine.
        out: folder of everything it makes; report.html in it is the result.
        seed: seed of data order, weights, bootstrap and trace.
        threads: threads of every compute kernel; 0 for all cores.
        json: print the report as JSON instead of tables.
    """
    config = QuickstartConfig(
        text=tuple(text),
        out=out,
        budget_flops=parse(budget, "FLOP", where="--budget"),
        cluster=cluster,
        minutes=minutes,
        seed=seed,
        threads=threads,
    )
    # Both are said before any work: a home that cannot be written, and a machine that is busy.
    writable_user_dir()
    _warn_of_other_work()
    from steelyard.weigh.quickstart import run_quickstart
    from steelyard.weigh.report import build

    report = build(run_quickstart(config, bar=progress))
    if said := records_of(THIS_MACHINE, "loss", "train", "serve"):
        told: list[list[Cell]] = [[quantity, words] for quantity, words in said.items()]
        table = Table([Column("Quantity"), Column("On this machine so far")], told)
        report.sections.append(Section("How often such forecasts were right", [table]))
    report.write_html(out / "report.html")
    write_bytes(out / "report.json", report.to_json().encode())
    if json:
        sys.stdout.write(report.to_json() + "\n")
        return
    report.print()
    sys.stderr.write(f"report: {(out / 'report.html').resolve()}\n")
    say_next("serve", out)


def _warn_of_other_work() -> None:
    """Tell at the start that the machine is busy, while its user may still change that."""
    others = other_work()
    if others > _MUCH:
        sys.stderr.write(
            f"note: other work keeps {others:.1f} processors busy; times are forecast for the "
            f"machine as it is, with wider intervals\n"
        )
