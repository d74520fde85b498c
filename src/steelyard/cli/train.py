"""`steelyard train`: train a model from a recipe."""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import cyclopts

from steelyard import config as configs
from steelyard import units
from steelyard.catalog.stored import load_calibration
from steelyard.cli.data.pruning import score
from steelyard.cli.following import say_next
from steelyard.cli.output import (
    Switch,
    forecast_table,
    measured_table,
    print_json,
    print_report,
)
from steelyard.cli.pricing import checks_of, keep_run, price_words, priced
from steelyard.cli.replay import replay
from steelyard.cli.study import study
from steelyard.cli.train_kinds import run_kind
from steelyard.cost import model_flops_per_token
from steelyard.data.shards import TokenShards
from steelyard.errors import ConfigError
from steelyard.runs.progress import progress
from steelyard.runs.report import Block, Cell, Checks, Column, Report, Section, Table, Text
from steelyard.runs.track import track_record
from steelyard.train.config import Measure, TrainConfig
from steelyard.train.kinds.recipe import load_recipe
from steelyard.train.price import FORECASTER, RunPrice
from steelyard.train.result import OnStep, Progress, TrainResult
from steelyard.train.worker import train_in_subprocess

if TYPE_CHECKING:
    from steelyard.train.stopping import StopRule

app = cyclopts.App(name="train", help="Train a transformer; killed runs continue.")
app.command(study)
app.command(replay)
app.command(score)


@app.command
def run(
    recipe: Path,
    *,
    out: Path,
    data: Path | None = None,
    measure: list[Measure] | None = None,
    subprocess: Switch = False,
    price: Switch = False,
    stop_if: str = "",
    json: Switch = False,
) -> None:
    """Train a model from a recipe into a run folder; run it again to continue after a kill.

    Under `torchrun --nproc-per-node N -m steelyard train run ...` N processes share each step.

    Example: steelyard train run recipes/train-tiny.toml --data tokens --out run

    Args:
        recipe: TOML or JSON file with the training configuration; see recipes/train-tiny.toml.
        out: folder of the run; the stored result of a finished run is printed at once.
        data: folder of token shards that `steelyard data prepare` made; of an encoder-decoder the
            recipe of its tasks, such as recipes/words.toml; images need none.
        measure: what to measure beside what the recipe names, such as noise-scale; may be repeated.
        subprocess: train in a new process, which makes the memory figures exact.
        price: time a few steps, print what the run would take in time, energy and money, and stop.
        stop_if: end the run when its final loss, forecast from the curve so far, will be too high,
            such as "eval.loss > 3.2"; it ends with exit code 1 and can go on without this.
        json: print the result as JSON.
    """
    config = load_recipe(recipe)
    if not isinstance(config, TrainConfig):
        _refuse_for_decoders(
            measure=bool(measure), subprocess=subprocess, price=price, stop_if=bool(stop_if)
        )
        run_kind(config, data, out, json=json)
        return
    wanted = dict.fromkeys((*config.measure, *(measure or ())))
    config = dataclasses.replace(config, measure=tuple(wanted))
    _refuse_alone(subprocess=subprocess, price=price)
    if data is None:
        raise ConfigError(
            "a decoder trains on token shards, and --data is missing",
            hint="steelyard data prepare texts --out tokens, then --data tokens",
        )
    # Before steps are timed: a condition that cannot be read is refused at once.
    rule = _rule(config, stop_if, out)
    config, tag = _priced(config, data, out, asked=price, quiet=json)
    if not price:
        _run_decoder(config, data, out, tag, rule, subprocess=subprocess, json=json)
    elif tag is not None:
        _show_price(config, tag, json=json)


def _run_decoder(
    config: TrainConfig,
    data: Path,
    out: Path,
    tag: RunPrice | None,
    rule: "StopRule | None",
    *,
    subprocess: bool,
    json: bool,
) -> None:
    """Train a decoder, keep the run in the store, and print what was measured."""
    if subprocess:
        with _shown(config, tag, rule, quiet=json) as on_step:
            result = train_in_subprocess(config, data, out, on_step=on_step)
    else:
        result = _train(config, data, out, tag, rule, quiet=json)
    if result is None:
        return
    run_id = keep_run(config, result, out, model=result.model, price=tag)
    _show(config, result, run_id, tag, json)
    if not json:
        say_next("chat", run_id, "--prompt", "Once upon a time")


def _refuse_for_decoders(**options: bool) -> None:
    """Refuse options that only runs of decoders have."""
    given = [f"--{name.replace('_', '-')}" for name, is_on in options.items() if is_on]
    if given:
        names = ", ".join(given)
        raise ConfigError(f"{names} is for decoders only", hint="leave it out")


def _rule(config: TrainConfig, stop_if: str, out: Path) -> "StopRule | None":
    """Make what stops the run early, None where nothing was asked."""
    if not stop_if:
        return None
    from steelyard.train.stopping import StopRule, parse_limit

    return StopRule(config, parse_limit(stop_if), out)


def _refuse_alone(**options: bool) -> None:
    """Refuse options that are for a run of one process where several share it."""
    given = [name for name, is_on in options.items() if is_on]
    if given and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"--{given[0]} was given to processes that share the steps of one run",
            hint=f"leave --{given[0]} out under torchrun",
        )


def _priced(
    config: TrainConfig, data: Path, out: Path, *, asked: bool, quiet: bool
) -> tuple[TrainConfig, RunPrice | None]:
    """Make the price tag of a run and say it; None where there is none."""
    # Processes that share a run would each time steps of their own.
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return config, None
    is_open = config.compile == "auto"
    with progress("timing a few steps", quiet=quiet):
        config, found = priced(config, data, out, asked=asked)
    if is_open and not quiet:
        print(f"torch.compile {'pays' if config.compile else 'does not pay'} here", flush=True)
    if found is not None and not quiet and not asked:
        print(f"{config.architecture.name} {price_words(found)}", flush=True)
    return config, found


def _show_price(config: TrainConfig, price: RunPrice, *, json: bool) -> None:
    """Print a price tag alone."""
    tokens = config.steps * config.tokens_per_step
    subtitle = f"{config.steps} steps of {config.tokens_per_step} tokens; nothing was trained yet"
    blocks: list[Block] = [forecast_table(price.forecasts, track_record(FORECASTER))]
    blocks += [Text(f"{name} is unknown: {lack}") for name, lack in price.unknown.items()]
    report = Report(f"Price of {config.architecture.name}", subtitle, [Section("", blocks)])
    print_report(report, json=json, values=configs.to_plain(price) | {"tokens": tokens})


def _train(
    config: TrainConfig,
    data: Path,
    out: Path,
    tag: RunPrice | None,
    rule: "StopRule | None",
    *,
    quiet: bool,
) -> TrainResult | None:
    """Train in this process; None in processes that only help the first."""
    from steelyard.train.launch import launched
    from steelyard.train.trainer import train

    with (
        launched(config.parallel) as reducer,
        _shown(config, tag, rule, quiet=quiet or reducer.everyone.rank > 0) as on_step,
    ):
        result = train(
            config,
            TokenShards(data),
            out,
            on_step=on_step,
            reducer=reducer,
            peak_flops_per_s=_peak_flops_per_s(config.dtype) or None,
        )
        return None if reducer.everyone.rank else result


@contextmanager
def _shown(
    config: TrainConfig, tag: RunPrice | None, rule: "StopRule | None", *, quiet: bool
) -> Iterator[OnStep]:
    """Show the progress of a run on standard error: loss, speed, time left and money so far."""
    usd_per_hour = (tag.usd_per_hour if tag else None) or config.usd_per_hour
    flops_per_token = model_flops_per_token(config.architecture, config.sequence_length)
    peak = _peak_flops_per_s(config.dtype)
    with progress(config.architecture.name, total=config.steps, quiet=quiet) as advance:

        def on_step(now: Progress) -> None:
            words = f"loss {now.loss:.3f}, {now.tokens_per_s:,.0f} tokens/s"
            if peak:
                words += f", MFU {100 * now.tokens_per_s * flops_per_token / peak:.0f} %"
            if usd_per_hour:
                words += f", {units.pretty(usd_per_hour * now.duration_s / 3600, 'USD')} so far"
            if rule is not None:
                rule(now)
                if rule.latest is not None:
                    said = rule.latest.forecast
                    words += f", will end at {said.low:.3f} to {said.high:.3f}"
            advance(now.step, words)

        yield on_step


def _peak_flops_per_s(dtype: str) -> float:
    """Return the measured peak of this machine; 0 where it was not calibrated."""
    calibration = load_calibration()
    if calibration is None or dtype not in {point.dtype for point in calibration.matmul}:
        return 0.0
    return calibration.best_flops_per_s(dtype)


def _show(
    config: TrainConfig, result: TrainResult, run_id: str, tag: RunPrice | None, json: bool
) -> None:
    """Print the measurements of a run, beside its price."""
    measurements = result.measurements()
    checks = checks_of(tag, result)
    measured = {item.quantity for item in measurements} | {
        item.forecast.quantity for item in checks
    }
    derived = (
        [item for item in tag.derived(result.duration_s) if item.quantity not in measured]
        if (tag and result.duration_s)
        else []
    )
    if json:
        plain = {"result": result.to_plain(), "measurements": configs.to_plain(measurements)}
        more = {"checks": configs.to_plain(checks), "derived": configs.to_plain(derived)}
        print_json({"run": run_id} | plain | (more if tag else {}))
        return
    subtitle = (
        f"{result.parameters:,} parameters, {result.steps} steps, seed {result.seed}; "
        f"weights in {result.model}, run {run_id}"
    )
    sections = [Section("Measured on this machine", [measured_table(measurements)])]
    if tag is not None:
        blocks: list[Block] = [Checks(checks), *([forecast_table(derived)] if derived else [])]
        sections.append(
            Section("Price tag and measured; what cannot be measured is derived", blocks)
        )
    for title, extra in _extras(result).items():
        sections.append(Section(title, [extra]))
    Report(f"Trained {config.architecture.name}", subtitle, sections).print()


def _extras(result: TrainResult) -> dict[str, Table]:
    """Make tables of what a run kept or measured because its recipe asked for it."""
    tables = {}
    if result.average_losses:
        rows: list[list[Cell]] = [
            [name, f"{losses[-1][1]:.4f}"] for name, losses in result.average_losses.items()
        ]
        rows.insert(0, ["weights of the last step", f"{result.eval_loss:.4f}"])
        tables["Held-out loss by average of the weights"] = Table(
            [Column("weights"), Column("nats per token", align="right")], rows
        )
    scales = {name: item for name, item in result.reports.items() if "low" in item}
    if scales:
        rows = [
            [name, *(_sequences(item[field]) for field in ("value", "low", "high"))]
            for name, item in scales.items()
        ]
        ends = [Column(title, align="right") for title in ("sequences", "from", "to (80 %)")]
        tables["Gradient noise scale: batch beyond which larger ones pay less"] = Table(
            [Column("measured by"), *ends], rows
        )
    return tables


def _sequences(value: float | None) -> str:
    """Write a noise scale, or that there is none."""
    return "-" if value is None else f"{value:,.1f}"
