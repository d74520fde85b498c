"""`steelyard serve`.

An OpenAI-compatible server, loads on it, the replay of a trace with its forecast, a profile of the
engine.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts

if TYPE_CHECKING:
    from steelyard.quantity import Forecast
    from steelyard.serve.engine import LLM, ReplayResult

__all__ = ["app", "model_folder"]

app = cyclopts.App(
    name="serve",
    help="Serve a model over an OpenAI-compatible API, load a server, or replay a trace.",
)
app.command(
    "steelyard.cli.bench:bench",
    name="bench",
    help="Load an OpenAI-compatible server and measure what comes back.",
)


@app.default
def serve(
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str = "",
    pool: str = "256 MiB",
    max_model_len: int = 0,
    token_budget: int = 512,
    policy: Literal["fcfs", "priority", "vtc", "dlpm", "sjf"] = "fcfs",
    asynchronous: bool = False,
    api_key_env: str = "",
    api_key_file: Path | None = None,
    requests_per_min: float = 0.0,
    tokens_per_min: float = 0.0,
    max_requests: int = 256,
    queue_tokens: int = 0,
    body_limit: str = "4 MiB",
    drain_timeout: str = "30 s",
    threads: int = 0,
) -> None:
    """Serve a model until interrupted; requests in flight are then finished.

    Args:
        model: Folder with config.json, safetensors and, for text, tokenizer.json; or the id of a
            run that made one.
        host: Address to listen on; the default is reachable from this machine only.
        port: TCP port, 0 for a free one.
        name: Of the model, as clients ask for it; the folder's name when left out.
        pool: Memory for keys and values.
        max_model_len: Longest prompt and output together; 0 takes what model and pool allow.
        token_budget: Most tokens per step.
        policy: Order in which requests are served.
        asynchronous: Plan one step ahead.
        api_key_env: Environment variable with the keys clients may send, apart by commas; none by
            default.
        api_key_file: File with one key and its owner's name per line.
        requests_per_min: Most requests a key may send in a minute, 0 for no limit.
        tokens_per_min: Most tokens of a key in a minute, 0 for no limit.
        max_requests: Most requests in flight; further ones are answered 429.
        queue_tokens: Most tokens expected of the requests in flight, likewise; 0 takes four times
            the pool.
        body_limit: Longest request body.
        drain_timeout: Longest wait for requests in flight when it is told to end.
        threads: Of the engine, 0 for its own choice.
    """
    from steelyard import units
    from steelyard.serve.front.launch import ServeOptions
    from steelyard.serve.front.launch import serve as launch

    options = ServeOptions(
        host=host,
        port=port,
        name=name,
        pool_bytes=int(units.parse(pool, "byte", where="--pool")),
        max_model_len=max_model_len,
        token_budget=token_budget,
        policy=policy,
        asynchronous=asynchronous,
        api_key_env=api_key_env,
        api_key_file=api_key_file,
        requests_per_min=requests_per_min,
        tokens_per_min=tokens_per_min,
        max_requests=max_requests,
        queue_tokens=queue_tokens,
        body_limit_bytes=int(units.parse(body_limit, "byte", where="--body-limit")),
        drain_timeout_s=units.parse(drain_timeout, "s", where="--drain-timeout"),
        threads=threads,
    )
    launch(model_folder(model), options)


app.command(serve, name="run", show=False)


@app.command
def replay(
    model: str,
    trace: Path,
    *,
    pool: str = "256 MiB",
    max_model_len: int = 0,
    token_budget: int = 512,
    scale: str = "1",
    limit: int = 0,
    seed: int = 0,
    json: Annotated[bool, cyclopts.Parameter(negative=())] = False,
) -> None:
    """Forecast a trace on this machine, replay it for real, and show both.

    Steps of the engine are timed first; the simulator then drives the same scheduler in virtual
    time.

    Args:
        model: Folder with config.json and safetensors, or the id of a run that made one.
        trace: CSV or JSON lines, plain or .gz, in any format that `steelyard serve bench` reads.
        pool: Memory for keys and values.
        max_model_len: Longest prompt and output together; 0 takes what model and pool allow.
        token_budget: Most tokens per step.
        scale: Factor on the trace's lengths, such as 1/8.
        limit: Only so many requests from its beginning; 0 for all.
        seed: Of the prompts' tokens.
        json: Print the report as JSON.
    """
    import numpy as np

    from steelyard.cli.bench import read_fraction
    from steelyard.serve.forecast import forecast_replay
    from steelyard.serve.profile import profile
    from steelyard.serve.traces import load_trace

    folder, factor = model_folder(model), read_fraction(scale, "--scale")
    llm = _engine(folder, pool, max_model_len, token_budget, ())
    generator = np.random.default_rng(seed)
    requests = load_trace(
        trace, generator, vocab_size=llm.model.architecture.vocab_size, limit=limit, scale=factor
    )
    forecasts = forecast_replay(llm, requests, profile(llm, generator=generator).fit())
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
    pool: str = "256 MiB",
    max_model_len: int = 0,
    token_budget: int = 512,
    seconds: float = 30.0,
    seed: int = 0,
) -> None:
    """Time the engine's steps on this machine and store the table that simulator and forecasts use.

    Args:
        model: Folder with config.json and safetensors, or the id of a run that made one.
        out: JSON file to make or replace.
        pool: Memory for keys and values.
        max_model_len: Longest prompt and output together; 0 takes what model and pool allow.
        token_budget: Most tokens per step.
        seconds: To spend on timing.
        seed: Of prompts and lengths.
    """
    from steelyard.errors import ConfigError
    from steelyard.serve.profile import write_table

    if not seconds > 0:
        raise ConfigError(f"--seconds is {seconds}", hint="give a time above 0")
    llm = _engine(model_folder(model), pool, max_model_len, token_budget, ())
    table = write_table(llm, out, seed=seed, limit_s=seconds)
    error = f"{table.test_error:.1%} median, {table.test_error_p90:.1%} at the 90th percentile"
    print(
        f"{len(table.seconds)} cases of {table.model.name} ({table.kernel}) in {out}; error on "
        f"{table.test_steps} other steps: {error}"
    )


def model_folder(text: str) -> Path:
    """Find the folder of a model.

    Args:
        text: the folder, or a run's id or a unique beginning of it.

    Returns:
        A folder with config.json.

    Raises:
        ConfigError: there is no such folder, it holds no model, or the run has no checkpoint.
        StoreError: neither a folder nor a run has this name.
    """
    from steelyard.errors import ConfigError, StoreError

    folder = Path(text).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or "/" in text:
        raise ConfigError(
            f"{text} is no model folder: it has no config.json",
            hint="give the folder a model was saved in, or a run's id",
        )
    from steelyard.runs.store import RunStore

    try:
        record = RunStore().get(text)
    except StoreError as error:
        raise StoreError(
            f"{text!r} is neither a model folder nor a run", hint=error.hint
        ) from error
    places = [item.path if item.path.is_dir() else item.path.parent for item in record.artifacts]
    for place in [*places, record.directory]:
        if (place / "config.json").is_file() and any(place.glob("*.safetensors")):
            return place
    raise ConfigError(
        f"run {record.id} ({record.kind}) has no checkpoint among its artifacts",
        hint="`steelyard runs show ID` lists them",
    )


def _engine(
    model: Path, pool: str, max_model_len: int, token_budget: int, end_tokens: tuple[int, ...]
) -> "LLM":
    """Load a model and make its engine."""
    from steelyard import units
    from steelyard.nn import checkpoint
    from steelyard.serve.engine import LLM, default_config

    pool_bytes = int(units.parse(pool, "byte", where="--pool"))
    transformer = checkpoint.load(model)
    config = default_config(
        transformer, pool_bytes=pool_bytes, max_model_len=max_model_len, token_budget=token_budget
    )
    return LLM(transformer, config, end_tokens=end_tokens)


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
