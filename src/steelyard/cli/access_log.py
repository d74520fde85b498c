"""`steelyard serve calibrate`: step times of any server from its access log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from steelyard.cli.output import Switch, print_report
from steelyard.config import to_plain
from steelyard.errors import ConfigError
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.serve.access_log import AccessLog
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.serve.log_fit import LogCalibration

__all__ = ["calibrate"]

_BLOCK_TOKENS = 16


def calibrate(
    log: Path,
    *,
    out: Annotated[Path, Parameter(alias="-o")] = Path("step-times.json"),
    token_budget: int = 2048,
    max_num_seqs: int = 256,
    kv_tokens: int = 1_000_000,
    json: Switch = False,
) -> None:
    """Find the step times of any server from its access log, and store them as a profile does.

    Example: steelyard serve calibrate access.csv --out step-times.json

    The log is a CSV with arrival_s, prompt_tokens, output_tokens, latency_s and perhaps ttft_s, one
    row per request, all requests of a time; or requests.parquet of `steelyard serve bench --out`.
    Nothing is sent to the server. The file is read by
    `steelyard serve replay` and `steelyard plan serve` with --steps.

    Args:
        log: CSV of the requests, plain or .gz, or requests.parquet.
        out: JSON file to make or replace.
        token_budget: Most tokens of a step of that server.
        max_num_seqs: Most requests it runs at once.
        kv_tokens: Tokens whose keys and values it holds.
        json: Print the fit as JSON.
    """
    from steelyard.cost.phase_time import PhaseStepTime
    from steelyard.serve.log_fit import calibrate_log
    from steelyard.sim.fleet.instance import ReplicaGroup

    for name, value in (("--token-budget", token_budget), ("--max-num-seqs", max_num_seqs)):
        if value < 1:
            raise ConfigError(f"{name} is {value}", hint="write a whole number of at least 1")
    if kv_tokens < _BLOCK_TOKENS:
        raise ConfigError(f"--kv-tokens is {kv_tokens}", hint="write at least 16")
    blank = PhaseStepTime.from_fits(prefill=(1, 0, 0), decode=(1, 0, 0), source="not read")
    limits = ReplicaGroup(
        step_time=blank,
        blocks=kv_tokens // _BLOCK_TOKENS,
        block_size=_BLOCK_TOKENS,
        token_budget=token_budget,
        max_num_seqs=min(max_num_seqs, token_budget),
    )
    read = AccessLog.read(log)
    found = calibrate_log(read, limits, source=f"fitted to {len(read.arrival_s)} rows of {log}")
    found.save(out)
    print_report(_report(found, log, out), json=json, values=to_plain(found))


def _report(found: "LogCalibration", log: Path, out: Path) -> Report:
    """Show typical steps with their intervals, and the error on what was not seen."""
    heads = [
        Column("step with"),
        Column("time", align="right"),
        Column("80 % interval", align="right"),
    ]
    rows: list[list[Cell]] = [
        [
            step.name,
            pretty(step.seconds, "s"),
            f"{pretty(step.low, 's')} to {pretty(step.high, 's')}",
        ]
        for step in found.steps
    ]
    first = f", of the time to the first token {found.test_ttft_error:.1%}"
    error = (
        f"Fitted without the last {found.test_rows} requests, the simulated latency of these is "
        f"off by {found.test_error:.1%} in the median and {found.test_error_p90:.1%} at the 90th "
        f"percentile{first if found.test_ttft_error else ''}."
    )
    return Report(
        "Step times from an access log",
        f"{found.rows} requests of {log}, stored in {out}",
        [Section("", [Table(heads, rows), Text(error)])],
    )
