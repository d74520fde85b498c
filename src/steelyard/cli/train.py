"""`steelyard train`: train a model from a recipe."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cyclopts

from steelyard import config as configs
from steelyard import units
from steelyard.catalog.stored import load_calibration
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_json
from steelyard.cli.pruning import score
from steelyard.cli.study import study
from steelyard.cost import model_flops_per_token
from steelyard.data.shards import TokenShards
from steelyard.errors import ConfigError
from steelyard.quantity import QUANTITIES
from steelyard.runs.progress import progress
from steelyard.runs.report import Cell, Column, Report, Section, Table
from steelyard.train.config import Measure, TrainConfig
from steelyard.train.result import Progress, TrainResult
from steelyard.train.worker import train_in_subprocess
from steelyard.weigh.stages import Stages

OnStep = Callable[[Progress], None]

app = cyclopts.App(name="train", help="Train a transformer; killed runs continue.")
app.command(study)
app.command(score)


@app.command
def run(
    recipe: Path,
    *,
    data: Path,
    out: Path,
    measure: list[Measure] | None = None,
    subprocess: Switch = False,
    json: Switch = False,
) -> None:
    """Train a model from a recipe into a run folder; run it again to continue after a kill.

    Under `torchrun --nproc-per-node N -m steelyard train run ...` N processes share each step.

    Example: steelyard train run recipes/train-tiny.toml --data tokens --out run

    Args:
        recipe: TOML or JSON file with the training configuration; see recipes/train-tiny.toml.
        data: folder of token shards that `steelyard data prepare` made.
        out: folder of the run; the stored result of a finished run is printed at once.
        measure: what to measure beside what the recipe names, such as noise-scale; may be repeated.
        subprocess: train in a new process, which makes the memory figures exact.
        json: print the result as JSON.
    """
    config = configs.load(recipe, TrainConfig)
    wanted = dict.fromkeys((*config.measure, *(measure or ())))
    config = dataclasses.replace(config, measure=tuple(wanted))
    if subprocess and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "--subprocess was given to processes that share the steps of one run",
            hint="leave --subprocess out under torchrun: each process is the run's own already",
        )
    if subprocess:
        with _shown(config, quiet=json) as on_step:
            result = train_in_subprocess(config, data, out, on_step=on_step)
    else:
        result = _train(config, data, out, quiet=json)
    if result is None:
        return
    run_id = _keep(config, result, out)
    _show(config, result, run_id, json)
    if not json:
        say_next("chat", run_id, "--prompt", "Once upon a time")


def _train(config: TrainConfig, data: Path, out: Path, *, quiet: bool) -> TrainResult | None:
    """Train in this process; None in processes that only help the first."""
    from steelyard.train.process_group import launched
    from steelyard.train.trainer import train

    with launched() as reducer, _shown(config, quiet=quiet or reducer.rank > 0) as on_step:
        result = train(
            config,
            TokenShards(data),
            out,
            on_step=on_step,
            reducer=reducer,
            peak_flops_per_s=_peak_flops_per_s(config.dtype) or None,
        )
        return None if reducer.rank else result


@contextmanager
def _shown(config: TrainConfig, *, quiet: bool) -> Iterator[OnStep]:
    """Show the progress of a run on standard error: loss, speed and time left."""
    flops_per_token = model_flops_per_token(config.architecture, config.sequence_length)
    peak = _peak_flops_per_s(config.dtype)
    with progress(config.architecture.name, total=config.steps, quiet=quiet) as advance:

        def on_step(now: Progress) -> None:
            words = f"loss {now.loss:.3f}, {now.tokens_per_s:,.0f} tokens/s"
            if peak:
                words += f", MFU {100 * now.tokens_per_s * flops_per_token / peak:.0f} %"
            advance(now.step, words)

        yield on_step


def _peak_flops_per_s(dtype: str) -> float:
    """Return the measured peak of this machine; 0 where it was not calibrated."""
    calibration = load_calibration()
    if calibration is None or dtype not in {point.dtype for point in calibration.matmul}:
        return 0.0
    return calibration.best_flops_per_s(dtype)


def _keep(config: TrainConfig, result: TrainResult, out: Path) -> str:
    """Write a finished run into the run store, once, and return its id."""
    from steelyard.runs.store import RunStore

    def work() -> str:
        with RunStore().create(
            "train", configs.to_plain(config), seed=config.seed, name=out.resolve().name
        ) as run:
            for item in result.measurements():
                run.measure(item)
            run.artifact("model", result.model)
        return run.id

    return Stages(out / "stages").run("keep", result.to_plain(), str, work)


def _show(config: TrainConfig, result: TrainResult, run_id: str, json: bool) -> None:
    """Print the measurements of a run."""
    measurements = result.measurements()
    if json:
        plain = {"result": result.to_plain(), "measurements": configs.to_plain(measurements)}
        print_json({"run": run_id} | plain)
        return
    rows: list[list[Cell]] = [
        [item.quantity, units.pretty(item.value, item.unit), QUANTITIES[item.quantity].definition]
        for item in measurements
    ]
    table = Table(
        [Column("quantity"), Column("measured", align="right"), Column("definition")], rows
    )
    subtitle = (
        f"{result.parameters:,} parameters, {result.steps} steps, seed {result.seed}; "
        f"weights in {result.model}, run {run_id}"
    )
    sections = [Section("Measured on this machine", [table])]
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
    scales = {name: item for name, item in result.reports.items() if "noise" in name}
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
