"""Where a step's time goes: `steelyard serve profile --step` and `steelyard serve explain`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.config import to_plain
from steelyard.errors import CalibrationError, ConfigError
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.catalog.calibration import Calibration
    from steelyard.catalog.engine_rates import EngineRates
    from steelyard.serve.account import StepAccount
    from steelyard.serve.engine import LLM
    from steelyard.serve.options import EngineOptions

__all__ = ["explained", "step_report"]


Answer = tuple[Report, Any]
"""What people see, and what programs want to know."""


def step_report(
    folder: Path, engine: "EngineOptions | None", *, batches: tuple[int, ...], context: int
) -> Answer:
    """Account for decoding steps and for a chunk of a prompt, operator by operator.

    Args:
        folder: the model.
        engine: kind of engine.
        batches: sequences of the decoding steps.
        context: tokens that each attends.

    Returns:
        A table per step; the accounts as plain values.

    Raises:
        CalibrationError: the engine's kernels were not calibrated.
        ConfigError: a batch or the context is out of range.
        BackendError: the engine does not run in native kernels.
    """
    from steelyard.serve.account import account_decoding, account_prompt

    _refuse(batches, context)
    calibration, rates = _calibrated()
    llm = _make(folder, engine)
    accounts = [
        *(account_decoding(llm, rates, batch=batch, context=context) for batch in batches),
        account_prompt(llm, rates),
    ]
    sections = [Section(_title(item), [_table(item)]) for item in accounts]
    caption = (
        "Bytes are those of weights, keys, values and activations; stream and products are shares "
        "of the rates that this machine was calibrated with. Activations stay in caches, so that "
        "shares of the stream can exceed 100 %."
    )
    report = Report(
        f"Steps of {folder.resolve().name}",
        _engine_words(llm, calibration),
        [*sections, Section("", [Text(caption)])],
    )
    return report, [_plain(item) for item in accounts]


def explained(folder: Path, engine: "EngineOptions | None", *, batch: int, context: int) -> Answer:
    """Say how fast a model is, how fast this processor could run it, and what lies between.

    Args:
        folder: the model.
        engine: kind of engine.
        batch: requests that decode together.
        context: tokens that each attends.

    Returns:
        One table by operator, and one of the types of weights; the account as plain values.

    Raises:
        CalibrationError: the engine's kernels were not calibrated.
        ConfigError: the batch or the context is out of range.
        BackendError: the engine does not run in native kernels.
    """
    from steelyard.serve.account import account_decoding

    _refuse((batch,), context)
    calibration, rates = _calibrated()
    llm = _make(folder, engine)
    account = account_decoding(llm, rates, batch=batch, context=context)
    share = account.tokens_per_s / account.ceiling_tokens_per_s
    said = (
        f"**{account.tokens_per_s:,.4g} tokens/s now** of {account.ceiling_tokens_per_s:,.4g} that "
        f"memory and multipliers of this processor allow ({share:.0%}), measured; "
        f"{account.tokens / account.forecast_s:,.4g} were forecast."
    )
    report = Report(
        f"What holds {folder.resolve().name} up",
        f"{_engine_words(llm, calibration)}; {_title(account)}",
        [
            Section("", [Text(said), _gap_table(account)]),
            Section("Other types of weights", [_types_table(llm, rates, batch, context)]),
        ],
    )
    return report, _plain(account)


def _plain(account: "StepAccount") -> dict[str, Any]:
    """Return an account as plain values, with what follows from it."""
    names = ("seconds", "bound_s", "forecast_s", "tokens_per_s", "ceiling_tokens_per_s")
    return to_plain(account) | {name: getattr(account, name) for name in names}


def _refuse(batches: tuple[int, ...], context: int) -> None:
    """Refuse sizes that no step has."""
    if min(batches, default=0) < 1 or context < 2:
        raise ConfigError(
            f"--batch {', '.join(map(str, batches))} and --context {context} are out of range",
            hint="give batches of 1 or more, and a context of 2 or more",
        )


def _calibrated() -> "tuple[Calibration, EngineRates]":
    """Return this machine's calibration and the rates of the engine's kernels."""
    from steelyard.catalog import load_calibration

    found = load_calibration()
    if found is None or found.engine is None:
        raise CalibrationError(
            "the engine's kernels were not calibrated on this machine",
            hint="run `steelyard calibrate` first, with g++ installed",
        )
    return found, found.engine


def _make(folder: Path, engine: "EngineOptions | None") -> "LLM":
    """Make an engine that runs one step at a time."""
    from dataclasses import replace

    from steelyard.serve.build import make_engine
    from steelyard.serve.options import EngineOptions

    return make_engine(folder, replace(engine or EngineOptions(), asynchronous=False))


def _engine_words(llm: "LLM", calibration: "Calibration") -> str:
    """Say what runs where."""
    kv = str(llm.runner.kv.dtype).removeprefix("torch.")
    return (
        f"{llm.runner.kernel} kernels, {llm.runner.weights} weights, {kv} keys and values; "
        f"{calibration.description}"
    )


def _title(account: "StepAccount") -> str:
    """Name a step."""
    if account.kind == "prefill":
        return f"prompt of {account.tokens:,} tokens"
    word = "request" if account.sequences == 1 else "requests"
    return f"{account.sequences} {word} decoding at {account.context:,.0f} tokens of context"


def _ms(seconds: float) -> str:
    """Write milliseconds."""
    return f"{1e3 * seconds:,.3f}" if seconds else ""


def _share(value: float) -> str:
    """Write a share, nothing for none."""
    return f"{value:.0%}" if value >= 0.005 else ""


_HEADS = {
    "operator": Column("operator"),
    "ms": Column("ms", align="right"),
    "share": Column("of the step", align="right"),
    "bytes": Column("bytes", align="right", rank=1),
    "operations": Column("operations", align="right", rank=1),
    "stream": Column("of stream", align="right"),
    "products": Column("of products", align="right"),
    "ceiling": Column("ms at the ceiling", align="right"),
    "lost": Column("ms lost", align="right"),
    "gap": Column("of the gap", align="right"),
    "bound": Column("ceiling set by", rank=2),
    "forecast": Column("ms forecast", align="right", rank=2),
}


def _columns(*names: str) -> list[Column]:
    """Return columns by name."""
    return [_HEADS[name] for name in names]


def _table(account: "StepAccount") -> Table:
    """Make the table of a step."""
    rows: list[list[Cell]] = [
        [
            item.name,
            _ms(item.seconds),
            _share(item.seconds / account.seconds),
            pretty(item.num_bytes, "byte") if item.num_bytes else "",
            pretty(item.flops, "FLOP") if item.flops else "",
            _share(item.stream_share),
            _share(item.product_share),
            _ms(item.forecast_s),
        ]
        for item in account.operators
    ]
    rows.append(["step", _ms(account.seconds), "100%", "", "", "", "", _ms(account.forecast_s)])
    names = ("operator", "ms", "share", "bytes", "operations", "stream", "products", "forecast")
    return Table(columns=_columns(*names), rows=rows)


def _gap_table(account: "StepAccount") -> Table:
    """Make the table of what lies between a step and its bounds, the largest loss first."""
    gap = account.seconds - account.bound_s
    rows: list[list[Cell]] = [
        [
            item.name,
            _ms(item.seconds),
            _ms(item.bound_s),
            _ms(item.seconds - item.bound_s),
            # A step that caches carry past the stream's rate has no gap to share out.
            _share((item.seconds - item.bound_s) / gap) if gap > 0 else "",
            item.bound,
            _share(item.stream_share),
            _share(item.product_share),
        ]
        for item in sorted(account.operators, key=lambda item: item.bound_s - item.seconds)
    ]
    rows.append(["step", _ms(account.seconds), _ms(account.bound_s), _ms(gap), "100%", "", "", ""])
    names = ("operator", "ms", "ceiling", "lost", "gap", "bound", "stream", "products")
    caption = (
        "ms measured; the ceiling is the larger of the bytes of weights, keys and values over the "
        "rate of reads, and the operations over the rate of products, both calibrated"
    )
    return Table(columns=_columns(*names), rows=rows, caption=caption)


def _types_table(llm: "LLM", rates: "EngineRates", batch: int, context: int) -> Table:
    """Make the table of what each type of weights would give."""
    from dataclasses import replace

    from steelyard.cost.engine_step import decode_features
    from steelyard.cost.weights import WEIGHT_LOSSES
    from steelyard.serve.account import step_time_of

    own, features = step_time_of(llm, rates), decode_features(batch, context)
    rows: list[list[Cell]] = []
    for kind in rates.types:
        parts = replace(own, weights=kind).parts(features)
        seconds = sum(part.seconds for part in parts)
        bound_s = sum(part.bound_s for part in parts)
        loss = WEIGHT_LOSSES[kind]
        rows.append(
            [
                f"{kind} (now)" if kind == own.weights else kind,
                _ms(seconds),
                f"{batch / seconds:,.4g}",
                f"{batch / bound_s:,.4g}",
                f"{loss.value:+.2%} ({loss.provenance})" if loss.value else "",
            ]
        )
    heads = [
        Column("weights"),
        Column("ms forecast", align="right"),
        Column("tokens/s forecast", align="right"),
        Column("tokens/s at the ceiling", align="right"),
        Column("perplexity of small models", align="right", rank=1),
    ]
    return Table(columns=heads, rows=rows, caption="`--weights` chooses; losses over fp32")
