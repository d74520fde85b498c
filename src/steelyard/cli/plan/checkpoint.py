"""`steelyard plan checkpoint`: how often a job should save, and what its failures cost."""

from pathlib import Path
from typing import Any

from steelyard import catalog
from steelyard.catalog.parameters import count_parameters
from steelyard.cli.output import Switch, forecast_table, print_json
from steelyard.config import to_plain
from steelyard.cost.memory import MIXED
from steelyard.errors import ConfigError, SteelyardError, merged
from steelyard.plan.checkpoint import CheckpointPlan, FaultyJob, plan_checkpoint
from steelyard.runs.report import Column, Report, Section, Table, Text
from steelyard.sim.faults import MemoryAndStorage, Weibull, read_failures
from steelyard.units import parse, pretty, pretty_duration

__all__ = ["checkpoint"]


def checkpoint(
    *,
    mtbf: str = "",
    failures: Path | None = None,
    count_column: str = "count",
    observed: int = 0,
    count: int = 0,
    save: str = "",
    model: str = "",
    write_rate: str = "",
    restart: str = "5 min",
    work: str = "30 days",
    memory_save: str = "",
    memory_restart: str = "1 min",
    hard_fraction: float = 0.2,
    json: Switch = False,
) -> int:
    """Say how often a job should save, what share of its time it keeps, and what would help.

    Example: steelyard plan checkpoint --mtbf '3 hours' --save '30 s' --restart '10 min'

    Args:
        mtbf: mean time between failures, such as "3 hours".
        failures: CSV file of failures, in place of --mtbf: columns time_s or date, with a count
            where there are several; or start_s and instances.
        count_column: column of the counts.
        observed: accelerators that --mtbf or --failures speak of; those of the job when 0.
        count: accelerators of the job; as many as observed when 0.
        save: time that a save holds the job up, such as "30 s".
        model: catalog name of the model whose weights and moments are written, in place of --save.
        write_rate: rate at which the job writes them, such as "100 GB/s".
        restart: time from a failure until work goes on.
        work: work of the whole job, for the interval of its goodput.
        memory_save: time that a save to memory takes; none are made when empty.
        memory_restart: time until work goes on from memory.
        hard_fraction: share of failures that take the memory with them.
        json: print the plan as JSON.

    Returns:
        Exit status: 1 where less than half of the time is kept.
    """
    _check(mtbf, failures, observed, count, save, model, write_rate)
    costs: dict[str, Any] = {
        "save_s": _save_s(save, model, write_rate),
        "restart_s": _seconds(restart, "--restart"),
        "work_s": _seconds(work, "--work", zero=False),
    }
    costs["memory"] = _memory(memory_save, memory_restart, hard_fraction, costs)
    # Twice the accelerators fail twice as often.
    scale = observed / count if observed and count else 1.0
    if failures is not None:
        record = read_failures(failures, count=count_column)
        job = FaultyJob.of_record(record, scale=scale, **costs)
    else:
        job = FaultyJob(failures=Weibull(_seconds(mtbf, "--mtbf", zero=False) * scale), **costs)
    made = plan_checkpoint(job)
    if json:
        print_json(to_plain(made) | {"job": to_plain(job)})
    else:
        _print(job, made)
    return 1 if made.lacks else 0


def _check(
    mtbf: str,
    failures: Path | None,
    observed: int,
    count: int,
    save: str,
    model: str,
    write_rate: str,
) -> None:
    """Refuse options that contradict or need each other, all at once."""
    wrong: list[SteelyardError] = []
    if bool(mtbf) == (failures is not None):
        wrong.append(
            ConfigError(
                "give either --mtbf or --failures",
                hint="such as --mtbf '3 hours', or --failures failures.csv",
            )
        )
    if observed < 0 or count < 0 or bool(observed) != bool(count):
        wrong.append(
            ConfigError(
                f"--observed is {observed} and --count is {count}, but both must be at least 1, or "
                "both be left out",
                hint="--observed says whose failures are known, --count how large the job is",
            )
        )
    if bool(save) == bool(model) or bool(model) != bool(write_rate):
        wrong.append(
            ConfigError(
                "give either --save, or --model with --write-rate",
                hint="such as --save '30 s', or --model llama-3.1-405b --write-rate '100 GB/s'",
            )
        )
    if wrong:
        raise merged(wrong)


def _seconds(text: str, where: str, *, zero: bool = True) -> float:
    """Read a time, which is at least 0, or above it."""
    found = parse(text, "s", where=where)
    if found < 0 or (not zero and not found):
        least = "0 s or more" if zero else "above 0 s"
        raise ConfigError(f"{where} is {text!r}, but must be {least}")
    return found


def _save_s(save: str, model: str, write_rate: str) -> float:
    """Return what a save takes: as given, or the model's states over the rate."""
    if save:
        return _seconds(save, "--save", zero=False)
    rate = parse(write_rate, "byte/s", where="--write-rate")
    if rate <= 0:
        raise ConfigError(f"--write-rate is {write_rate!r}, but must be above 0")
    # The fp32 weights and both moments are enough to go on; 16-bit weights follow from them.
    return MIXED.optimizer * count_parameters(catalog.architecture_by_name(model)).total / rate


def _memory(save: str, restart: str, hard_fraction: float, costs: dict[str, Any]) -> Any:
    """Return the level of saves to memory, if any are asked for."""
    if not save:
        return None
    if not 0 <= hard_fraction <= 1:
        raise ConfigError(f"--hard-fraction is {hard_fraction}, but must be in [0, 1]")
    return MemoryAndStorage(
        memory_save_s=_seconds(save, "--memory-save", zero=False),
        memory_restart_s=_seconds(restart, "--memory-restart"),
        save_s=costs["save_s"],
        restart_s=costs["restart_s"],
        hard_fraction=hard_fraction,
    )


def _print(job: FaultyJob, made: CheckpointPlan) -> None:
    """Print a plan as tables."""
    choices = Table(
        columns=[Column("interval by"), *_right("work between saves", "time kept")],
        rows=[
            [item.name, pretty_duration(item.interval_s), f"{item.goodput:.2%}"]
            for item in made.choices
        ],
        caption=f"a save takes {pretty(job.save_s, 's')}, failures come every "
        f"{pretty_duration(job.failures.mean_s)} on average",
    )
    low, high = map(pretty_duration, made.flat_s)
    notes = [Text(f"Any interval from {low} to {high} keeps within 0.1 % of the most.")]
    if made.two_levels:
        found = made.two_levels
        notes.append(
            Text(
                f"With saves to memory every {pretty_duration(found.interval_s)}, and every "
                f"{found.every} of them also to storage, {found.goodput:.2%} is kept (failures at "
                "a constant rate)."
            )
        )
    if made.lacks:
        notes.insert(0, Text(f"**Infeasible**: {made.lacks}."))
    wall = pretty_duration(job.work_s / max(made.goodput.value, 1e-9))
    spent = Table(
        columns=[Column("time goes to"), *_right("share")],
        rows=[[name, f"{value:.2%}"] for name, value in made.shares.items()],
        caption=f"{pretty_duration(job.work_s)} of work take about {wall}",
    )
    gains = sorted(made.gains.items(), key=lambda item: -item[1])
    helps = Table(
        columns=[Column("what would help"), *_right("time gained")],
        rows=[[name, f"{value:+.2%}"] for name, value in gains],
    )
    Report(
        f"Save every {pretty_duration(made.interval_s)}",
        "",
        [
            Section("Interval", [choices, *notes]),
            Section("Forecast", [forecast_table([made.goodput])]),
            Section("Why", [spent, helps]),
        ],
    ).print()


def _right(*names: str) -> list[Column]:
    return [Column(name, align="right") for name in names]
