"""`steelyard train run` of recipes that are no decoder's: pairs of texts, and images."""

from pathlib import Path

from steelyard import config as configs
from steelyard.cli.output import measured_table, print_json
from steelyard.cli.pricing import keep_run
from steelyard.data.tasks.recipe import load_recipe as load_tasks
from steelyard.errors import ConfigError
from steelyard.runs.progress import progress
from steelyard.runs.report import Report, Section
from steelyard.train.kinds import ImagesConfig, PairsConfig
from steelyard.train.result import EstimatorResult, Progress

__all__ = ["run_kind"]


def run_kind(
    config: PairsConfig | ImagesConfig, data: Path | None, out: Path, *, json: bool
) -> None:
    """Train, keep the run in the store, and print what was measured.

    Args:
        config: the run.
        data: recipe of the tasks of pairs; None for images, which are generated.
        out: folder of the run.
        json: print the result as JSON.

    Raises:
        ConfigError: `data` is missing where it is needed, or given where nothing reads it.
    """
    from steelyard.train.launch import launched

    is_pair = isinstance(config, PairsConfig)
    if is_pair and data is None:
        raise ConfigError(
            "an encoder-decoder trains on tasks, and --data is missing",
            hint="give their recipe, such as --data recipes/words.toml",
        )
    if not is_pair and data is not None:
        raise ConfigError(
            f"--data {data} was given, but this recipe generates its images", hint="leave it out"
        )
    with launched(config.parallel) as reducer:
        name = config.architecture.name if isinstance(config, PairsConfig) else "images"
        with progress(name, total=config.steps, quiet=json or reducer.everyone.rank > 0) as advance:

            def on_step(now: Progress) -> None:
                words = f"loss {now.loss:.3f}, {now.tokens_per_s:,.0f} examples/s"
                advance(now.step, words)

            if isinstance(config, PairsConfig):
                assert data is not None
                from steelyard.train.kinds.pairs import train_pairs

                tasks = load_tasks(data)
                result = train_pairs(config, tasks, out, on_step=on_step, reducer=reducer)
            else:
                from steelyard.train.kinds.images import train_images

                result = train_images(config, out, on_step=on_step, reducer=reducer)
        if not reducer.everyone.rank:
            model = out / "model" if is_pair else None
            _show(name, result, keep_run(config, result, out, model=model), json)


def _show(name: str, result: EstimatorResult, run_id: str, json: bool) -> None:
    """Print the measurements of a run."""
    measurements = result.measurements()
    if json:
        plain = {"result": result.to_plain(), "measurements": configs.to_plain(measurements)}
        print_json({"run": run_id} | plain)
        return
    subtitle = (
        f"{result.parameters:,} parameters, {result.steps} steps, seed {result.seed}; "
        f"checkpoint {result.checkpoint}, run {run_id}"
    )
    title = "Measured on this machine; an example counts as a token"
    section = Section(title, [measured_table(measurements)])
    Report(f"Trained {name}", subtitle, [section]).print()
