"""`steelyard serve`: an OpenAI-compatible server, and the replay of a trace with its forecast beside it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

if TYPE_CHECKING:
    from steelyard.quantity import Forecast
    from steelyard.serve.engine import LLM, ReplayResult

app = cyclopts.App(name="serve", help="Serve a model over an OpenAI-compatible API, or replay a trace.")


@app.command
def run(
    *,
    model: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_env: str = "",
    pool: str = "256 MiB",
    max_model_len: int = 0,
    token_budget: int = 512,
) -> None:
    """Serve a model until interrupted.

    Args:
        model: folder with config.json, safetensors and, for text, tokenizer.json.
        host: address to listen on; the default is reachable from this machine only.
        port: TCP port.
        api_key_env: environment variable that holds the keys clients may send, apart by commas; none by default.
        pool: memory for keys and values.
        max_model_len: longest prompt and output together; 0 takes what model and pool allow.
        token_budget: most tokens per step.
    """
    from steelyard import units
    from steelyard.serve.front.launch import ServeOptions, serve

    options = ServeOptions(
        host=host,
        port=port,
        api_key_env=api_key_env,
        pool_bytes=int(units.parse(pool, "byte")),
        max_model_len=max_model_len,
        token_budget=token_budget,
    )
    serve(model, options)


@app.command
def replay(
    *,
    model: Path,
    trace: Path,
    pool: str = "256 MiB",
    max_model_len: int = 0,
    token_budget: int = 512,
    seed: int = 0,
    json: Annotated[bool, cyclopts.Parameter(negative=())] = False,
) -> None:
    """Forecast a trace on this machine, replay it for real, and show both.

    Steps of the engine are timed first; the simulator then drives the same scheduler in virtual time.

    Args:
        model: folder with config.json and safetensors.
        trace: CSV with the columns arrival_s, prompt_tokens, output_tokens.
        pool: memory for keys and values.
        max_model_len: longest prompt and output together; 0 takes what model and pool allow.
        token_budget: most tokens per step.
        seed: of the prompts' tokens.
        json: print the report as JSON.
    """
    import numpy as np

    from steelyard.serve.forecast import forecast_replay
    from steelyard.serve.profile import profile
    from steelyard.serve.traces import load_trace

    llm = _engine(model, pool, max_model_len, token_budget, ())
    generator = np.random.default_rng(seed)
    requests = load_trace(trace, generator, vocab_size=llm.model.architecture.vocab_size)
    forecasts = forecast_replay(llm, requests, profile(llm, generator=generator).fit())
    measured = llm.replay(requests)
    report = _report(forecasts, measured, f"{trace.name} on {model.resolve().name}, {len(requests)} requests, seed {seed}")
    if json:
        print(report.to_json())
    else:
        report.print()


def _engine(model: Path, pool: str, max_model_len: int, token_budget: int, end_tokens: tuple[int, ...]) -> "LLM":
    """Load a model and make its engine."""
    from steelyard import units
    from steelyard.nn import checkpoint
    from steelyard.serve.engine import LLM, default_config

    pool_bytes = int(units.parse(pool, "byte"))
    transformer = checkpoint.load(model)
    config = default_config(transformer, pool_bytes=pool_bytes, max_model_len=max_model_len, token_budget=token_budget)
    return LLM(transformer, config, end_tokens=end_tokens)


def _report(forecasts: "list[Forecast]", measured: "ReplayResult", subtitle: str) -> Any:
    """Put forecast and measurement side by side."""
    from steelyard.quantity import check
    from steelyard.runs.report import Checks, Report, Section

    checks = check(forecasts, measured.measurements())
    return Report("Replay of a trace", subtitle, [Section("Simulated before, measured after", [Checks(checks)])])
