"""`steelyard plan explain`: which term of a running job departs, from its log of steps."""

from pathlib import Path

from steelyard.cli.output import Switch, print_json
from steelyard.cli.plan.job_options import JobOptions
from steelyard.cli.plan.keeping import check_plan
from steelyard.cli.plan.step_options import StepOptions
from steelyard.config import to_plain
from steelyard.plan.explain import TERMS, JobDiagnosis, diagnose, read_step_log
from steelyard.quantity import Check
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.units import pretty

__all__ = ["explain"]


def explain(
    log: Path,
    /,
    *,
    job: JobOptions,
    options: StepOptions | None = None,
    baseline: Path | None = None,
    plan: str = "",
    json: Switch = False,
) -> int:
    """Say which term of a running job departs from its forecast, from its log of steps.

    The log is a CSV or JSON-lines file with columns step and step_time_s, with rank one row per
    rank, and with the terms of a step where they are known; or a folder of `train run`.

    Example: steelyard plan explain steps.jsonl --model gpt3-175b --cluster Selene --tensor 8
    --pipeline 8 --micro-batches 16

    Args:
        log: the measured steps: terms are compute_s, tensor_s, bubble_s, data_s, load_s, update_s.
        job: model, machines, layout and batch of the job.
        options: overlaps and the model's block; slow machines are what the log is searched for.
        baseline: an earlier log of the same job, to compare with in place of the forecast.
        plan: run of `plan train --keep` that the job follows: its step's time is written beside the
            forecast, and into the ledger.
        json: print the diagnosis as JSON.

    Returns:
        Exit status: 1 where something departs.
    """
    chosen = options or StepOptions()
    chosen.refuse_stragglers()
    step = job.step(chosen)
    earlier = read_step_log(baseline) if baseline else None
    read = read_step_log(log)
    found = diagnose(read, step, baseline=earlier)
    checks = check_plan(plan, read, job.cluster or job.accelerator) if plan else []
    if json:
        print_json(to_plain(found) | {"checks": to_plain(checks)})
        return 1 if found.findings else 0
    _print(found, log, baseline)
    _print_checks(checks)
    return 1 if found.findings else 0


def _print_checks(checks: list[Check]) -> None:
    """Print whether a kept plan held."""
    for item in checks:
        held = "holds" if item.covered else "misses"
        print(
            f"The plan's interval of {item.forecast.quantity} {held} what was measured "
            f"({item.relative_error:+.1%}); written into the ledger."
        )


def _print(found: JobDiagnosis, log: Path, baseline: Path | None) -> None:
    """Print a diagnosis as tables."""
    against = f"the earlier log {baseline}" if baseline else "the forecast"
    low, high = (pretty(value, "s") for value in (found.low_s, found.high_s))
    usual = (
        f"A step takes {pretty(found.step_s, 's')}; expected by {against} are "
        f"{pretty(found.expected_s, 's')} ({low} to {high})."
    )
    head = found.findings[0].words if found.findings else f"nothing departs from {against}"
    if not found.findings and found.step_s < found.low_s:
        # Far too fast is no fault of the job: it is another job than the one described.
        head = f"the job is faster than {against} allows"
        usual += " Check model, layout, micro-batches and recomputation against the job's."
    sections = [
        Section("What departs", [*_causes(found), Text(usual)]),
        Section("Terms", [*_terms(found), *(Text(f"{note}.") for note in found.notes)]),
    ]
    Report(head[0].upper() + head[1:], f"steps of {log}", sections).print()


def _causes(found: JobDiagnosis) -> list[Table]:
    """Make the table of causes; none where nothing departs."""
    if not found.findings:
        return []
    rows: list[list[Cell]] = [
        [
            item.cause,
            pretty(item.cost_s, "s"),
            f"{item.cost_s / found.step_s:.1%}",
            ", ".join(map(str, item.ranks[:8])) + (" ..." if len(item.ranks) > 8 else "") or "all",
            item.words,
        ]
        for item in found.findings
    ]
    heads = [Column("cause"), Column("costs a step", align="right"), Column("share", align="right")]
    return [Table([*heads, Column("ranks", rank=1), Column("what")], rows)]


def _terms(found: JobDiagnosis) -> list[Table]:
    """Make the table of all terms beside what was expected of them; none where none were logged."""
    if not found.measured:
        return []
    rows: list[list[Cell]] = []
    for name, words in TERMS.items():
        if name not in found.measured:
            continue
        now, before = found.measured[name], found.expected.get(name, 0.0)
        ratio = f"{now / before:.2f}" if before > 0 else ""
        rows.append([name, words, pretty(now, "s"), pretty(before, "s"), ratio])
    heads = (Column(name, align="right") for name in ("measured", "expected", "ratio"))
    caption = "means over all ranks of what is usual"
    return [Table([Column("term"), Column("what", rank=1), *heads], rows, caption=caption)]
