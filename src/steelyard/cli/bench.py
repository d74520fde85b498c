"""`steelyard serve bench`: send a load to any OpenAI-compatible server and measure it."""

import json
import math
import sys
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter

from steelyard.config import load as read_config
from steelyard.config import to_plain
from steelyard.errors import ConfigError
from steelyard.runs.progress import progress
from steelyard.serve.client.load import LoadOptions, LoadResult, run_load
from steelyard.serve.client.models import list_models
from steelyard.serve.client.results import store_load, to_json, write_results
from steelyard.serve.client.summary import LoadSummary, Slo, summarize
from steelyard.serve.client.wire.address import Endpoint, read_key
from steelyard.serve.deployment import Deployment
from steelyard.serve.traces import TraceRow, draw_arrivals, load_rows, synthetic_rows
from steelyard.serve.traces.read import has_arrivals
from steelyard.units import parse

__all__ = ["bench", "read_fraction"]

_RAMP = "1,4,16"
_OPEN_REQUESTS = 100
_OF_LOAD = (
    "trace", "rate", "concurrency", "num_requests", "scale", "burstiness", "input_tokens",
    "output_tokens", "sigma", "slo", "duration",
)  # fmt: skip
"""Options that say what a deployment says."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What to send, how, and where the results go.

    Args:
        trace: Requests: CSV or JSON lines, plain or .gz; drawn lengths when left out.
        deployment: File of `steelyard plan serve --out` or `steelyard serve --reduced`: its load is
            replayed, and its forecasts are kept beside what is measured.
        rate: Mean requests per second; "inf" sends all at once.
        concurrency: Requests under way, one number or a list such as 1,2,4,...,64.
        num_requests: Requests to send, per level; 0 for the whole trace, or 8 per concurrent
            request and at least 32.
        scale: Factor on the trace's lengths, such as 1/8.
        burstiness: Shape of the Gamma gaps of drawn arrivals; 1 is Poisson, less comes in bursts.
        input_tokens: Mean prompt length without a trace.
        output_tokens: Mean output length without a trace.
        sigma: Spread of the logarithm of lengths without a trace, 0 for equal ones.
        slo: What a good answer keeps, such as ttft=0.5,tpot=50ms,e2e=10.
        send: Prompts as token ids, as text, or as a chat message.
        model: Name the requests carry; the server's first when left out.
        vocab_size: Token ids lie below it.
        warm_up: Requests before the clock starts.
        processes: Number of sending processes; 0 for as many as the concurrency needs.
        timeout: Longest wait for one answer.
        retries: How often a request answered 429 is sent again, after the time the server asks for.
        duration: No request starts later than this; 0 for no limit.
        extra: JSON object of further body fields; null takes one away, as in '{"ignore_eos":
            null}'.
        seed: Seed of lengths, arrivals and prompts.
        api_key_env: Environment variable that holds the API key.
        out: Folder for load.json, requests.parquet and report.html.
        name: Name of the run in the run store.
        store: Folder or URL of the run store; the user's own when left out.
        record: Keep the load in the run store.
        json: Print the numbers as JSON.
    """

    trace: Path | None = None
    deployment: Path | None = None
    rate: str = ""
    concurrency: str = ""
    num_requests: int = 0
    scale: str = "1"
    burstiness: float = 1.0
    input_tokens: int = 160
    output_tokens: int = 60
    sigma: float = 0.8
    slo: str = ""
    send: Literal["tokens", "text", "chat"] = "tokens"
    model: str = ""
    vocab_size: int = 256
    warm_up: int = 4
    processes: int = 0
    timeout: str = "10 min"
    retries: int = 0
    duration: str = "0"
    extra: str = ""
    seed: int = 0
    api_key_env: str = ""
    out: Path | None = None
    name: str = ""
    store: str = ""
    record: bool = True
    json: Annotated[bool, Parameter(negative=())] = False


def bench(
    url: Annotated[str, Parameter(help="Address of the server.")] = "http://127.0.0.1:8000",
    *,
    options: BenchOptions | None = None,
) -> int:
    """Load an OpenAI-compatible server and measure TTFT, TPOT, latency, throughput and goodput.

    Example: steelyard serve bench http://127.0.0.1:8000 --concurrency 1,4,16

    With --concurrency, so many requests are kept under way at each level of the list. With --rate,
    or a trace with arrival times, requests are sent at their times whatever the server does.
    Without either, a short ramp of concurrencies is run. The exit code is 1 when no request came
    back whole.
    """
    options = options or BenchOptions()
    if options.rate and options.concurrency:
        raise ConfigError(
            "--rate and --concurrency exclude each other",
            hint="a rate opens the loop, a concurrency closes it",
        )
    planned = _planned(options)
    if planned is not None:
        objective = Slo(ttft_s=planned.load.ttft_s, tpot_s=planned.load.tpot_s)
        rows = {0: planned.rows()}
    else:
        objective = Slo.parse(options.slo)
        rate_per_s = _rate(options.rate)
        rows = {level: _rows(options, level, rate_per_s) for level in _levels(options, rate_per_s)}
    load = _load_options(url, options)
    results = {level: _run(load, rows[level], level, quiet=options.json) for level in rows}
    return _finish(results, objective, load, options, planned)


def _planned(options: BenchOptions) -> Deployment | None:
    """Read the deployment whose load is replayed; refuse what would change that load."""
    if options.deployment is None:
        return None
    plain = BenchOptions()
    for name in _OF_LOAD:
        if getattr(options, name) != getattr(plain, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} and --deployment exclude each other",
                hint="change the load in the deployment's file",
            )
    return read_config(options.deployment, Deployment)


def read_fraction(text: str, where: str) -> float:
    """Read a factor such as 1/8 or 0.125."""
    try:
        return float(Fraction(text.replace(" ", "")))
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"{where}: cannot read {text!r}", hint="write a factor such as 1/8 or 0.125"
        ) from error


def _rate(text: str) -> float | None:
    """Read a rate; infinity is one."""
    if not text:
        return None
    value = (
        math.inf
        if text.strip().lower() in ("inf", "infinity")
        else parse(text, "request/s", where="--rate")
    )
    if not value > 0:
        raise ConfigError(f"--rate is {text}", hint="write requests per second above 0, or inf")
    return value


def _extra(text: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(
            f"--extra is not JSON: {error}", hint="""write an object such as '{"top_p": 0.9}'"""
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"--extra is {text}, not a JSON object",
            hint="""write an object such as '{"top_p": 0.9}'""",
        )
    return value


def _levels(options: BenchOptions, rate_per_s: float | None) -> list[int]:
    """Read a list of concurrencies; [0] for an open loop.

    Three dots go on as the two numbers before them do.
    """
    if not options.concurrency and (
        rate_per_s is not None or (options.trace is not None and has_arrivals(options.trace))
    ):
        return [0]
    text = options.concurrency or _RAMP
    words = [word.strip() for word in text.replace("…", "...").split(",") if word.strip()]
    levels: list[int] = []
    for place, word in enumerate(words):
        if word == "...":
            levels += _between(levels, words[place + 1 : place + 2], text)
        elif word.isdecimal() and int(word) >= 1:
            levels.append(int(word))
        else:
            raise ConfigError(
                f"--concurrency: {word!r} is not a whole number above 0",
                hint="write such as 8, or 1,2,4,...,64",
            )
    return sorted(set(levels))


def _between(levels: list[int], after: list[str], text: str) -> list[int]:
    """Fill three dots by the factor of the numbers before where it is whole, else by their step."""
    if len(levels) < 2 or not after or not after[0].isdecimal() or levels[-1] <= levels[-2]:
        raise ConfigError(
            f"--concurrency: cannot fill the dots in {text!r}",
            hint="write two rising numbers before and one after them: 1,2,4,...,64",
        )
    earlier, last, end = levels[-2], levels[-1], int(after[0])
    factor = last // earlier if last % earlier == 0 else 0
    filled: list[int] = []
    while (
        following := (filled[-1] if filled else last) * factor
        if factor
        else (filled[-1] if filled else last) + last - earlier
    ) < end:
        filled.append(following)
    return filled


def _load_options(url: str, options: BenchOptions) -> LoadOptions:
    """Find the server and make what all levels share."""
    load = LoadOptions(
        endpoint=Endpoint.parse(url, api_key=read_key(options.api_key_env)),
        model=options.model,
        form=options.send,
        warm_up=options.warm_up,
        processes=options.processes,
        timeout_s=parse(options.timeout, "s", where="--timeout"),
        retries=options.retries,
        duration_s=parse(options.duration, "s", where="--duration"),
        seed=options.seed,
        vocab_size=options.vocab_size,
        extra=_extra(options.extra),
    )
    found = list_models(load.endpoint)
    return load if options.model or not found else replace(load, model=found[0])


def _rows(options: BenchOptions, level: int, rate_per_s: float | None) -> list[TraceRow]:
    """Make the requests of a level, 0 for an open loop."""
    generator = np.random.default_rng(options.seed + level)
    at_once = float("inf")
    if options.trace is not None:
        rate = None if level or rate_per_s == at_once else rate_per_s
        wanted = options.num_requests
        rows = load_rows(
            options.trace,
            generator,
            limit=wanted,
            scale=read_fraction(options.scale, "--scale"),
            rate_per_s=rate,
        )
        return (
            draw_arrivals(rows, generator, rate_per_s=at_once)
            if level or rate_per_s == at_once
            else rows
        )
    rows = synthetic_rows(
        generator,
        num_requests=options.num_requests or (max(8 * level, 32) if level else _OPEN_REQUESTS),
        rate_per_s=at_once,
        mean_prompt=options.input_tokens,
        mean_output=options.output_tokens,
        sigma=options.sigma,
    )
    return (
        rows
        if level
        else draw_arrivals(
            rows, generator, rate_per_s=rate_per_s or 1.0, burstiness=options.burstiness
        )
    )


def _run(options: LoadOptions, rows: list[TraceRow], level: int, *, quiet: bool) -> LoadResult:
    """Run one level under a progress bar on standard error; every level has prompts of its own."""
    name = f"{level} at once" if level else "at arrival times"
    with progress(name, total=len(rows), quiet=quiet) as advance:
        # Prompts of an earlier level would be in the server's prefix cache.
        chosen = replace(options, concurrency=level, seed=options.seed + 1000 * level)
        return run_load(chosen, rows, on_progress=lambda done: advance(done, ""))


def _finish(
    results: dict[int, LoadResult],
    objective: Slo,
    load: LoadOptions,
    options: BenchOptions,
    planned: Deployment | None,
) -> int:
    """Summarize, show, write and keep."""
    from steelyard.serve.client.report import ramp_report

    pairs = {level: (summarize(result, objective), result) for level, result in results.items()}
    about = _about(load, options, objective)
    report = ramp_report(
        pairs, title=f"Load on {load.endpoint.url}", subtitle=_subtitle(load, options, pairs)
    )
    files = write_results(options.out, pairs, report, about) if options.out else []
    if options.record:
        _keep(pairs, about, files, options, planned)
    if options.json:
        print(to_json({level: summary for level, (summary, _) in pairs.items()}, about))
    else:
        report.print()
        if files:
            sys.stderr.write(f"written: {', '.join(map(str, files))}\n")
    return 0 if any(summary.requests for summary, _ in pairs.values()) else 1


def _about(load: LoadOptions, options: BenchOptions, objective: Slo) -> dict[str, Any]:
    """Say what was sent, to whom; the key is left out."""
    about = (
        {"url": load.endpoint.url}
        | to_plain(options)
        | {"model": load.model, "slo": to_plain(objective)}
    )
    return {
        name: value
        for name, value in about.items()
        if name not in ("api_key_env", "out", "name", "store", "record", "json")
    }


def _subtitle(
    load: LoadOptions, options: BenchOptions, pairs: dict[int, tuple[LoadSummary, LoadResult]]
) -> str:
    """Say what was sent, in one line."""
    drawn = f"drawn lengths, {options.input_tokens} in and {options.output_tokens} out in the mean"
    what = f"{options.trace.name}, lengths x {options.scale}" if options.trace else drawn
    how = "sent at arrival times" if 0 in pairs else f"{', '.join(map(str, pairs))} at once"
    rate = f" ({options.rate} per s)" if options.rate else ""
    return (
        f"{load.model or 'default model'}: {what}, {how}{rate}, as {load.form}, seed {options.seed}"
    )


def _keep(
    pairs: dict[int, tuple[LoadSummary, LoadResult]],
    about: dict[str, Any],
    files: list[Path],
    options: BenchOptions,
    planned: Deployment | None,
) -> None:
    """Write every level to the run store, and say how forecasts are checked."""
    from steelyard.runs.store import RunStore

    opened = RunStore(options.store or None)
    for level, (summary, result) in pairs.items():
        words = options.name or (f"{about['url']} at {level}" if level else str(about["url"]))
        run_id = store_load(
            opened,
            summary,
            result,
            about={**about, "concurrency": level},
            name=words,
            seed=options.seed,
            files=files,
            forecasts=planned.forecasts if planned else (),
        )
        if planned is not None and not options.json:
            where = f" --store {options.store}" if options.store else ""
            sys.stderr.write(
                f"forecasts are kept beside it: steelyard runs check {run_id} "
                f"--record plan.service{where}\n"
            )
