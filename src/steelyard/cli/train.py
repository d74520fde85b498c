"""`steelyard train`: train a model from a recipe."""

from pathlib import Path

import cyclopts

from steelyard import config as configs
from steelyard import units
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_json
from steelyard.cli.study import study
from steelyard.data.shards import TokenShards
from steelyard.quantity import QUANTITIES
from steelyard.runs.progress import progress
from steelyard.runs.report import Cell, Column, Report, Section, Table
from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult
from steelyard.train.worker import train_in_subprocess
from steelyard.weigh.stages import Stages

app = cyclopts.App(name="train", help="Train a transformer; killed runs continue.")
app.command(study)


@app.command
def run(
    recipe: Path,
    *,
    data: Path,
    out: Path,
    subprocess: Switch = False,
    json: Switch = False,
) -> None:
    """Train a model from a recipe into a run folder; run it again to continue after a kill.

    Example: steelyard train run recipes/train-tiny.toml --data tokens --out run

    Args:
        recipe: TOML or JSON file with the training configuration; see recipes/train-tiny.toml.
        data: folder of token shards that `steelyard data prepare` made.
        out: folder of the run; the stored result of a finished run is printed at once.
        subprocess: train in a new process, which makes the memory figures exact.
        json: print the result as JSON.
    """
    config = configs.load(recipe, TrainConfig)
    result = _train(config, data, out, subprocess, quiet=json)
    run_id = _keep(config, result, out)
    _show(config, result, run_id, json)
    if not json:
        say_next("chat", run_id, "--prompt", "Once upon a time")


def _train(
    config: TrainConfig, data: Path, out: Path, subprocess: bool, *, quiet: bool
) -> TrainResult:
    """Train under a progress bar on standard error."""
    from steelyard.train.trainer import train

    with progress(config.architecture.name, total=config.steps, quiet=quiet) as advance:

        def on_step(now: Progress) -> None:
            advance(now.step, f"loss {now.loss:.3f}, {now.tokens_per_s:,.0f} tokens/s")

        if subprocess:
            return train_in_subprocess(config, data, out, on_step=on_step)
        return train(config, TokenShards(data), out, on_step=on_step)


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
    Report(
        f"Trained {config.architecture.name}",
        subtitle,
        [Section("Measured on this machine", [table])],
    ).print()
