"""Command line of the benchmarks.

`python -m benchmarks NAME [--quick] [--json]`, `--list`, `peers install NAME`.
"""

import contextlib
import datetime
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import discover, machine, peers
from benchmarks.common import Check
from steelyard.errors import SteelyardError
from steelyard.files import write_json

app = cyclopts.App(
    name="benchmarks",
    help="Run one benchmark: ours and the baseline, side by side.",
    version_flags=[],
)
peers_app = cyclopts.App(name="peers", help="Other tools, each in its own virtual environment.")
app.command(peers_app)

_RESULTS = Path(__file__).parent / "results"


@app.default
def run(name: str = "", *, quick: bool = False, json: bool = False, list: bool = False) -> int:
    """Run a benchmark and check its bars; exit 0 when all are met, 1 when not.

    Args:
        name: benchmark, the name of its file.
        quick: real work, but ends within 60 s on 2 cores; nothing is stored.
        json: print nothing but the JSON line.
        list: print the benchmarks and their papers instead.

    Returns:
        The exit code.
    """
    if list or not name:
        return _print_list(json=json)
    benchmark = discover.load(name)
    start = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        checks = benchmark.run(quick)
    record = {
        "benchmark": name,
        "paper": benchmark.papers,
        "quick": quick,
        "checks": [_plain(check) for check in checks],
        "machine": machine.machine(),
    }
    if not json:
        _print_table(benchmark, checks, time.perf_counter() - start)
    if not quick:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        write_json(
            _RESULTS / f"{name}.json", record | {"versions": machine.versions(), "date": date}
        )
    sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
    return 0 if checks and all(check.ok for check in checks) else 1


@app.command(name="all")
def run_all(*, quick: bool = False) -> int:
    """Run every benchmark, each in a process of its own; exit 0 when all bars are met.

    Args:
        quick: the version of each that ends within 60 s on 2 cores.

    Returns:
        The exit code.
    """
    options = ["--quick"] if quick else []
    missed = [
        name
        for name in discover.find()
        if subprocess.run(
            [sys.executable, "-m", "benchmarks", name, *options], check=False
        ).returncode
    ]
    sys.stdout.write(f"missed their bars: {' '.join(missed)}\n" if missed else "every bar is met\n")
    return 1 if missed else 0


@peers_app.command
def install(
    name: str, *, checkout: Annotated[Path | None, cyclopts.Parameter(name="--from")] = None
) -> int:
    """Make the virtual environment of a peer with its pinned packages.

    Args:
        name: a table of `benchmarks/peers.toml`.
        checkout: folder with the repository of a peer that no registry has.

    Returns:
        The exit code.
    """
    sys.stdout.write(f"{peers.install(name, checkout)}\n")
    return 0


@peers_app.command(name="list")
def list_peers() -> int:
    """Print the peers and their pins."""
    for name, packages in peers.known().items():
        sys.stdout.write(f"{name}: {' '.join(packages)}\n")
    return 0


def _plain(check: Check) -> dict[str, Any]:
    """Turn a check into the fields of the JSON line."""
    return {
        "name": check.name,
        "value": float(check.value),  # some are numbers of numpy, which JSON does not know
        "bar": check.bar,
        "better": check.better,
        "ok": bool(check.ok),
    }


def _print_list(*, json: bool) -> int:
    """Print every benchmark with its papers."""
    found = [discover.load(name) for name in discover.find()]
    if json:
        rows = [
            {"benchmark": item.name, "room": item.room, "paper": item.papers, "about": item.about}
            for item in found
        ]
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
        return 0
    table = Table("room", "benchmark", "papers", "what it shows")
    for item in found:
        table.add_row(item.room, item.name, " ".join(item.papers), escape(item.about))
    Console().print(table)
    return 0


def _print_table(benchmark: discover.Benchmark, checks: list[Check], seconds: float) -> None:
    """Print the checks for people."""
    table = Table(
        title=escape(f"{benchmark.name}: {benchmark.about}"),
        caption=f"{seconds:.1f} s",
        title_justify="left",
    )
    for column, justify in (("check", "left"), ("value", "right"), ("bar", "right"), ("", "left")):
        table.add_column(column, justify=justify)  # pyright: ignore[reportArgumentType]
    for check in checks:
        sign = "≥" if check.better == "higher" else "≤"
        verdict = "[green]ok[/]" if check.ok else "[red]missed[/]"
        table.add_row(escape(check.name), f"{check.value:.4g}", f"{sign} {check.bar:.4g}", verdict)
    Console().print(table)


def main() -> None:
    """Run the command line; an error is one line and its hint."""
    try:
        code = app(exit_on_error=False)
    except cyclopts.CycloptsError:
        code = 2
    except SteelyardError as error:
        console = Console(stderr=True)
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        if error.hint:
            console.print(f"[dim]{escape(error.hint)}[/]", soft_wrap=True)
        code = error.exit_code
    raise SystemExit(code)


if __name__ == "__main__":
    main()
