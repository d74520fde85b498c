"""`steelyard serve`: a server, loads on it, the replay of a trace, a profile of the engine."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from steelyard.cli.flags import flags
from steelyard.cli.models import find_model, model_folder
from steelyard.cli.output import Switch, print_report
from steelyard.serve.front.launch import ServeOptions
from steelyard.serve.options import EngineOptions

if TYPE_CHECKING:
    from steelyard.quantity import Forecast
    from steelyard.serve.engine import LLM, ReplayResult

__all__ = ["app"]

_PROFILE_S = 20.0
_PROBE_S = 4.0

app = cyclopts.App(
    name="serve",
    help="Serve a model over an OpenAI-compatible API, load a server, or replay a trace.\n\n"
    "Example: steelyard serve quickstart-out --port 8000",
)
app.command(
    "steelyard.cli.bench:bench",
    name="bench",
    help="Load an OpenAI-compatible server and measure what comes back.\n\n"
    "Example: steelyard serve bench http://127.0.0.1:8000 --concurrency 1,4,16",
)
app.command(
    "steelyard.cli.quantize:quantize",
    name="quantize",
    help="Write a model's weights in 4 or 8 bits, and measure what that costs.\n\n"
    "Example: steelyard serve quantize quickstart-out --weights int4 --calibrate texts",
)


app.command(
    "steelyard.cli.access_log:calibrate",
    name="calibrate",
    help="Find the step times of any server from its access log.\n\n"
    "Example: steelyard serve calibrate access.csv --out step-times.json",
)


# A type checker takes the options for what they are; the command line gets its flags.
if TYPE_CHECKING:
    from steelyard.serve.front.launch import ServeOptions as _ServeFlags
    from steelyard.serve.options import EngineOptions as _EngineFlags
else:
    _ServeFlags = flags(ServeOptions)
    _EngineFlags = flags(EngineOptions)


@app.default
def serve(
    model: str,
    *,
    options: _ServeFlags | None = None,
    deployment: Path | None = None,
    reduced: Path | None = None,
    steps: Path | None = None,
) -> None:
    """Serve a model until interrupted; requests in flight are then finished.

    Example: steelyard serve quickstart-out --port 8000

    The address also has a page to try the model on, and a reference of the API at /docs.

    Args:
        model: Folder of a model or of a quickstart, a GGUF file, or a run's name or id.
        options: Address, limits, keys, and the kind of engine.
        deployment: File that `steelyard plan serve --out` wrote: its engine is started.
        reduced: With --deployment, JSON file for the same at the size of this machine: one replica
            of this model, as busy and as tight as planned.
        steps: With --reduced, step times of this model's engine from `steelyard serve profile`.
    """
    from steelyard.cli.deployed import deployed_options
    from steelyard.serve.front import launch

    found = find_model(model)
    chosen = deployed_options(found, options or ServeOptions(), deployment, reduced, steps)
    launch.serve(found.folder, chosen, names=found.names)


app.command(serve, name="run", show=False)


@app.command
def replay(
    model: str,
    trace: Path,
    *,
    engine: _EngineFlags | None = None,
    scale: str = "1",
    limit: int = 0,
    seed: int = 0,
    steps: Path | None = None,
    json: Annotated[bool, cyclopts.Parameter(negative=())] = False,
) -> None:
    """Forecast a trace on this machine, replay it for real, and show both.

    Example: steelyard serve replay quickstart-out trace.csv

    Steps of the engine are timed first; the simulator then drives the same scheduler in virtual
    time. With --steps the file's step times are used, scaled to a short probe of the engine.

    Args:
        model: Folder of a model or of a quickstart, a GGUF file, or a run's name or id.
        trace: CSV or JSON lines, plain or .gz, in any format that `steelyard serve bench` reads.
        engine: Kind of engine.
        scale: Factor on the trace's lengths, such as 1/8.
        limit: Only so many requests from its beginning; 0 for all.
        seed: Seed of the prompts' tokens.
        steps: File of `steelyard serve profile` or `steelyard serve calibrate`.
        json: Print the report as JSON.
    """
    import numpy as np

    from steelyard.cli.bench import read_fraction
    from steelyard.contention import LoadMeter
    from steelyard.cost.phase_time import PhaseStepTime
    from steelyard.serve.forecast import forecast_replay
    from steelyard.serve.profile import profile
    from steelyard.serve.traces import load_trace

    stored = PhaseStepTime.load(steps) if steps else None
    folder = model_folder(model)
    factor = read_fraction(scale, "--scale")
    llm = _make(folder, engine)
    generator = np.random.default_rng(seed)
    requests = load_trace(
        trace, generator, vocab_size=llm.model.architecture.vocab_size, limit=limit, scale=factor
    )
    meter = LoadMeter()
    samples = profile(llm, generator=generator, limit_s=_PROBE_S if stored else _PROFILE_S)
    step_time = samples.anchor(stored) if stored else samples.fit()
    # What others took of the processors so far, they may take or leave during the replay.
    drift = math.hypot(samples.drift(step_time), meter.read().lost)
    forecasts = forecast_replay(llm, requests, step_time, drift=drift)
    measured = llm.replay(requests)
    report = _report(
        forecasts,
        measured,
        f"{trace.name} on {folder.resolve().name}, {len(requests)} requests, seed {seed}",
    )
    if json:
        print(report.to_json())
    else:
        report.print()


@app.command
def profile(
    model: str,
    *,
    out: Annotated[Path, cyclopts.Parameter(alias="-o")] = Path("step-table.json"),
    engine: _EngineFlags | None = None,
    seconds: float = 30.0,
    seed: int = 0,
    step: Switch = False,
    batch: tuple[int, ...] = (1, 8),
    context: int = 512,
    json: Switch = False,
) -> None:
    """Time the engine's steps on this machine and store the table that simulator and forecasts use.

    Example: steelyard serve profile quickstart-out --out step-table.json

    With --step no table is stored: the operators of decoding steps and of a prompt are shown with
    their time, bytes, operations and shares of what `steelyard calibrate` measured.

    Args:
        model: Folder of a model or of a quickstart, a GGUF file, or a run's name or id.
        out: JSON file to make or replace.
        engine: Kind of engine.
        seconds: Time to spend on timing.
        seed: Seed of prompts and lengths.
        step: Account for the time of single steps, operator by operator.
        batch: With --step, requests that decode together; give the option once for each.
        context: With --step, tokens that each of them attends.
        json: With --step, print JSON.
    """
    from steelyard.errors import ConfigError

    if step:
        from steelyard.cli.explain import step_report

        folder = model_folder(model)
        report, values = step_report(folder, engine, batches=batch, context=context)
        print_report(report, json=json, values=values)
        return
    from steelyard.serve.profile import write_table

    if not seconds > 0:
        raise ConfigError(f"--seconds is {seconds}", hint="write a time above 0")
    llm = _make(model_folder(model), engine)
    table = write_table(llm, out, seed=seed, limit_s=seconds)
    error = f"{table.test_error:.1%} median, {table.test_error_p90:.1%} at the 90th percentile"
    print(
        f"{len(table.seconds)} cases of {table.model.name} ({table.kernel}) in {out}; error on "
        f"{table.test_steps} other steps: {error}"
    )


@app.command
def explain(
    model: str,
    *,
    engine: _EngineFlags | None = None,
    batch: int = 1,
    context: int = 512,
    json: Switch = False,
) -> None:
    """Say how fast a model is here, how fast this processor could run it, and what lies between.

    Example: steelyard serve explain quickstart-out --batch 8

    Args:
        model: Folder of a model or of a quickstart, a GGUF file, or a run's name or id.
        engine: Kind of engine.
        batch: Requests that decode together.
        context: Tokens that each of them attends.
        json: Print JSON.
    """
    from steelyard.cli.explain import explained

    report, values = explained(model_folder(model), engine, batch=batch, context=context)
    print_report(report, json=json, values=values)


def _make(folder: Path, engine: EngineOptions | None) -> "LLM":
    """Make the engine of a command that runs it in this process."""
    from steelyard.serve.build import make_engine

    return make_engine(folder, engine or EngineOptions())


def _report(forecasts: "list[Forecast]", measured: "ReplayResult", subtitle: str) -> Any:
    """Put forecast and measurement side by side."""
    from steelyard.quantity import check
    from steelyard.runs.report import Checks, Report, Section

    checks = check(forecasts, measured.measurements())
    return Report(
        "Replay of a trace",
        subtitle,
        [Section("Simulated before, measured after", [Checks(checks)])],
    )
