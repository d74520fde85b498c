"""`steelyard serve starts`: how long the engine takes to start here, step by step."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from steelyard.cli.flags import flags
from steelyard.cli.models import model_folder
from steelyard.cli.output import Switch, print_report
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.serve.front.engine.start_times import time_starts, weight_files
from steelyard.serve.options import EngineOptions
from steelyard.units import pretty

__all__ = ["starts"]

if TYPE_CHECKING:
    from steelyard.serve.options import EngineOptions as _EngineFlags
else:
    _EngineFlags = flags(EngineOptions)

_WORDS = {
    "cold": "new process, weights from storage",
    "cold-dram": "new process, weights in memory",
    "pre-warmed": "waiting process, weights from storage",
    "dram": "waiting process, weights in memory",
    "fork": "waiting process, weights from a running engine",
}


def starts(
    model: str,
    *,
    out: Annotated[Path, cyclopts.Parameter(alias="-o")] = Path("starts.json"),
    engine: _EngineFlags | None = None,
    rounds: int = 5,
    json: Switch = False,
) -> None:
    """Time starts of the engine up to the first token, step by step, and store them.

    Example: steelyard serve starts quickstart-out --out starts.json

    Processes start anew or have imported everything and wait; weights are dropped from the page
    cache or are in it. `steelyard sim serve --starts` simulates fleets that start this way.

    Args:
        model: Folder of a model or of a quickstart, a GGUF file, or a run's name or id.
        out: JSON file to make or replace.
        engine: Kind of engine.
        rounds: Starts of each kind.
        json: Print JSON.
    """
    from steelyard.sim.serverless.inference import EngineStarts

    folder = model_folder(model)
    samples = time_starts(folder, engine or EngineOptions(), rounds=rounds)
    size = float(sum(path.stat().st_size for path in weight_files(folder)))
    name = folder.stem if folder.is_file() else folder.resolve().name
    found = EngineStarts.of_samples(
        samples, source=f"{rounds} starts of {name} on this machine", weights_bytes=size
    )
    found.save(out)
    means = {kind: found.mean_s(kind) for kind in found.start_ups}
    values = {"weights_bytes": size, "rounds": rounds, "mean_s": means, "seconds": samples}
    print_report(_page(means, name, out), json=json, values=values)


def _page(means: dict[str, dict[str, float]], name: str, out: Path) -> Report:
    """Show each kind of start by step, beside the cold one."""
    cold_s, names = sum(means["cold"].values()), list(means["cold"])
    rows: list[list[Cell]] = []
    for kind, steps in means.items():
        total_s = sum(steps.values())
        times = [pretty(steps[step], "s") if steps[step] else "–" for step in names]
        rows.append([kind, *times, pretty(total_s, "s"), f"{cold_s / total_s:.1f}x", _WORDS[kind]])
    heads = [
        Column("start"),
        *(Column(step.replace("_", "-"), align="right", rank=2) for step in names),
        Column("first token", align="right"),
        Column("cold over it", align="right"),
        Column("what was ahead", rank=1),
    ]
    told = Text(f"Stored in {out}; `steelyard sim serve --starts {out}` simulates with it.")
    return Report(
        "Starts of the engine",
        f"{name}, mean of each step, measured here",
        [Section("", [Table(heads, rows), told])],
    )
