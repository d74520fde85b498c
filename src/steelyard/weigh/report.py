"""The quickstart's report.

What was forecast, what was measured, and what a bigger budget would buy.
"""

import platform
import time
from typing import Any

from steelyard.laws.fitting.wording import parameter_words
from steelyard.laws.pictures.charts import fit_chart
from steelyard.plan import Plan
from steelyard.plan.types import layout_words
from steelyard.runs import Chart, Checks, Column, Facts, Report, Section, Table, Text
from steelyard.runs.charts import bars, loss_curves, matmul_rates, predicted_measured
from steelyard.runs.report import Cell, fact
from steelyard.runs.wording import quantity_words
from steelyard.units import pretty
from steelyard.weigh.ladder import BATCH_SIZE, SEQUENCE_LENGTH, parameters
from steelyard.weigh.quickstart import Quickstart

__all__ = ["build"]

_STEP_TOKENS = BATCH_SIZE * SEQUENCE_LENGTH
_LABELS = {
    "train.total_time": "Wall time",
    "run.cost": "Money",
    "run.energy": "Energy",
    "run.carbon": "CO2e",
    "eval.loss": "Loss",
    "plan.num_accelerators": "Accelerators",
    "train.mfu": "Model FLOPs utilization",
    "plan.memory_per_accelerator": "Memory per accelerator",
}
"""The forecasts shown as cards, and the words above them."""


def build(found: Quickstart) -> Report:
    """Draw a finished quickstart.

    Args:
        found: what it found.

    Returns:
        The report, for the terminal, JSON and HTML.
    """
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    machine = found.calibration
    return Report(
        title="This machine, weighed",
        subtitle=f"{machine.description}, Python {platform.python_version()}, seed "
        f"{found.config.seed}, {date}",
        sections=[
            _verdict(found),
            _law(found),
            _budget(found),
            _machine(found),
            _method(found),
        ],
    )


def _verdict(found: Quickstart) -> Section:
    """Lead with the forecasts and what came."""
    covered = sum(item.covered for item in found.checks)
    by_name = {item.forecast.quantity: item for item in found.checks}
    loss = by_name["eval.loss"]
    step = by_name["train.step_time"]
    half = (loss.forecast.high - loss.forecast.low) / 2
    said = (
        f"A ladder of {len(found.ladder.rungs)} small models forecast a larger one before it was "
        f"trained: loss "
        f"**{loss.forecast.value:.3f}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{half:.3f}**, "
        f"measured **{loss.measurement.value:.3f}**. "
        f"{covered} of {len(found.checks)} measured values fell inside their 80 % interval."
    )
    facts = [
        ("Loss forecast", pretty(loss.forecast.value, "nat/token"), "fitted"),
        ("Loss measured", pretty(loss.measurement.value, "nat/token"), "measured"),
        ("Step time forecast", pretty(step.forecast.value, "s"), "fitted"),
        ("Step time measured", pretty(step.measurement.value, "s"), "measured"),
    ]
    return Section(
        "Forecast against measured",
        [
            Text(said),
            Facts(facts),
            Checks(found.checks),
            Chart(predicted_measured(found.checks, "Measured over forecast")),
        ],
    )


def _law(found: Quickstart) -> Section:
    """Show the ladder and the law through it."""
    law = found.laws[0]
    rows: list[list[Cell]] = [[name, *parameter_words(law, name)] for name in law.params]
    columns = [Column("Parameter"), Column("Fitted", align="right")]
    columns += [Column("80 % interval", align="right")]
    flat = "; ".join(map(str, law.flat_directions))
    caption = (
        f"L(N, D) = {law.law.formula} on {len(found.points)} runs. The forecast: {_source(found)}; "
        f"shown is {law.law.name}, with residuals of {100 * law.noise:.2f} %. "
        + (f"Poorly determined: {flat}." if flat else "")
    )
    steps = range(1, len(found.losses) + 1)
    curves = {"larger model": ([step * _STEP_TOKENS for step in steps], found.losses)}
    return Section(
        "The law behind the forecast",
        [
            Chart(
                _law_chart(found),
                "Filled: runs the fit saw. Open diamond: the larger model, trained after its "
                "forecast was written down.",
            ),
            Table(columns, rows, caption.strip()),
            Chart(loss_curves(curves, "Training loss of the larger model")),
        ],
    )


def _source(found: Quickstart) -> str:
    """Say what the forecast of the loss came from."""
    loss = (item.forecast for item in found.checks if item.forecast.quantity == "eval.loss")
    return next(loss).source


def _law_chart(found: Quickstart) -> dict[str, Any]:
    """Draw the ladder's runs, the law's curves, and the larger model's run."""
    measured = {item.forecast.quantity: item.measurement.value for item in found.checks}
    return fit_chart(
        found.laws[0],
        title="Loss over tokens, one curve per model size",
        target="Held-out loss, nats per token",
        along="tokens",
        by="parameters",
        unseen={
            "parameters": parameters(found.ladder.target),
            "tokens": found.ladder.target_steps * _STEP_TOKENS,
            "target": measured["eval.loss"],
        },
    )


def _budget(found: Quickstart) -> Section:
    """Show what the asked budget buys on the asked cluster."""
    plan = found.plan
    # Nobody measured the cluster: the text says so before any number of it.
    said = (
        f"**{pretty(found.config.budget_flops, 'FLOP')}** on **{found.cluster.name}**, split "
        f"between size and tokens by {_law_of(plan)}. Machine times rest on published peaks and "
        f"assumed efficiencies, not on a measurement there."
    )
    said += "".join(f" {name} is left out: {why}." for name, why in plan.unknown.items())
    facts = [
        fact(item, _LABELS[item.quantity]) for item in plan.forecasts if item.quantity in _LABELS
    ]
    rejected: list[list[Cell]] = [
        [layout_words(item.choice), item.reason] for item in plan.rejected[:6]
    ]
    return Section(
        "What the budget buys",
        [
            Text(said),
            Facts(facts),
            _plan_forecasts(plan),
            Table([Column("Recipe"), Column("Chosen")], _recipe(plan.choice)),
            Table(
                [Column("Alternative"), Column("Why it lost")],
                rejected,
                "The closest alternatives.",
            ),
        ],
    )


def _plan_forecasts(plan: Plan) -> Table:
    """Return the table of what the plan forecasts."""
    rows: list[list[Cell]] = []
    for item in plan.forecasts:
        interval, value = quantity_words(item.low, item.high, item.unit, item.value)
        rows.append([item.quantity, value, interval, item.provenance, item.source])
    columns = [
        Column("Quantity"),
        Column("Forecast", align="right"),
        Column("80 % interval", align="right"),
        Column("Provenance"),
        Column("Source"),
    ]
    return Table(columns, rows, f"Binding constraint: {plan.binding_constraint}.")


def _law_of(plan: Plan) -> str:
    """Name the law the plan's size and tokens come from."""
    loss = plan.forecast("eval.loss")
    return (
        "the law above"
        if loss.provenance == "fitted"
        else f"a published law, as the budget is far beyond the ladder ({loss.source})"
    )


def _recipe(choice: dict) -> list[list[Cell]]:
    """Describe the chosen settings in four lines."""
    arch = choice["architecture"]
    return [
        [
            "Model",
            f"{pretty(choice['parameters'], 'parameter')}: {arch['num_layers']} layers of width "
            f"{arch['hidden_size']:,}, "
            f"{arch['num_heads']} heads ({arch['num_kv_heads']} for keys and values), MLP "
            f"{arch['intermediate_size']:,}, "
            f"vocabulary {arch['vocab_size']:,}",
        ],
        [
            "Data",
            f"{pretty(choice['tokens'], 'token')} in {choice['steps']:,} steps of "
            f"{choice['global_batch']:,} sequences "
            f"of {choice['sequence_length']:,} tokens",
        ],
        ["Optimizer", f"peak learning rate {choice['learning_rate']:.3g}, {choice['dtype']}"],
        [
            "Layout",
            f"{choice['accelerator']} of {choice['cluster']}: {layout_words(choice)}, accumulation "
            f"{choice['accumulation']}"
            + (", sequence parallel" if choice["sequence_parallel"] else ""),
        ],
    ]


def _machine(found: Quickstart) -> Section:
    """Show the calibration of this machine and the cost of serving a step."""
    machine = found.calibration
    facts = [fact(item) for item in machine.measurements if item.quantity.startswith("machine.")]
    square = [item for item in machine.matmul if item.m == item.n == item.k]
    blocks: list = [Facts(facts)]
    if square:
        rates = {
            "dtype": [item.dtype for item in square],
            "size": [item.m for item in square],
            "flops_per_s": [item.flops_per_s for item in square],
            "spread": [item.spread for item in square],
        }
        blocks.append(Chart(matmul_rates(rates)))
    runs = {item.shape: item for item in found.points}
    labels = [f"{item.hidden_size} wide, {item.num_layers} layers" for item in runs.values()]
    blocks.append(
        Chart(
            bars(
                labels,
                [item.step_time_s for item in runs.values()],
                title="Measured step time of the ladder",
                unit="s",
            )
        )
    )
    words = (
        f"Noise of the calibration: {100 * machine.noise:.1f} % (median interquartile range "
        f"over median)."
    )
    return Section("This machine", [*blocks, Text(words)])


def _paces(found: Quickstart) -> str:
    """Word how long the fixed work took while times were forecast and measured."""
    said = [
        f"{pretty(item.forecast.pace_s, 's')} for the forecast of {item.forecast.quantity}, "
        f"{pretty(item.measurement.pace_s, 's')} when it was measured"
        for item in found.checks
        if item.forecast.quantity in ("train.step_time", "serve.tpot") and item.forecast.pace_s
    ]
    return f" ({'; '.join(said)})" if said else ""


def _method(found: Quickstart) -> Section:
    """Say what was done, measured, simulated and not done."""
    text, ladder, serving = found.text, found.ladder, found.serving
    rungs = ", ".join(f"{width}x{layers}" for width, layers in ladder.rungs)
    said = (
        f"- Text: {text.documents:,} documents ({pretty(text.text_bytes, 'byte')}), "
        f"{100 * text.duplicate_fraction:.1f} % duplicates dropped, "
        f"{text.num_tokens:,} training tokens of {text.bytes_per_token:.2f} bytes; held-out "
        f"documents were never trained on.\n"
        f"- Ladder: models {rungs} (width x layers), each one constant-rate run cooled down at "
        f"{', '.join(map(str, ladder.branch_steps))} "
        f"steps of {BATCH_SIZE} x {SEQUENCE_LENGTH} tokens; then "
        f"{ladder.target[0]}x{ladder.target[1]} for {ladder.target_steps} steps.\n"
        "- The forecast of the larger model was stored before its first step.\n"
        f"- Serving: {serving.num_requests} requests at {serving.rate_per_s:.1f} per second "
        f"(Poisson arrivals, lognormal lengths), "
        "simulated first with the engine's own scheduler in virtual time, then replayed for real "
        "on the trained model.\n"
        f"- Speed of the machine: a fixed piece of work was timed several times a second beside "
        f"training and serving{_paces(found)}. Times are forecast for the speed seen before, and "
        f"compared at equal speed too.\n"
        "- Energy and carbon are forecasts from rated power; no power meter was read.\n"
        f"- Everything took {pretty(found.duration_s, 's')} in this call; run {found.run_id} in "
        f"the run store keeps it."
    )
    return Section("How it was done", [Text(said)])
