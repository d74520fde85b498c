"""The verb that recommends batch and learning rate of a run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from steelyard.cli.following import say_next
from steelyard.cli.laws.answers import recipe_page
from steelyard.cli.laws.options import FLAG, MANY, TableOptions, dump, numbers
from steelyard.errors import ConfigError

__all__ = ["recipe"]


def recipe(
    file: Path,
    *,
    at: Annotated[tuple[str, ...], MANY],
    target: str = "loss",
    tokens_per_sequence: float = 1.0,
    table: TableOptions | None = None,
    level: float = 0.8,
    extrapolate: Annotated[bool, FLAG] = False,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Recommend batch and learning rate of a run, from a sweep of both.

    Example: steelyard laws recipe sweep.csv --at parameters=1B tokens=50B --column
    batch_tokens=batch learning_rate=lr --tokens-per-sequence 2048

    Args:
        file: CSV, Parquet or JSON lines with one run per row: parameters, tokens, batch_tokens,
            learning_rate and loss.
        at: size and training tokens of the run, parameters=NUMBER tokens=NUMBER.
        target: column with the loss, by its new name.
        tokens_per_sequence: tokens per sequence, where the batch is counted in sequences.
        table: which columns and rows to read.
        level: probability inside the intervals, 0..1.
        extrapolate: allow a run more than two decades beyond the sweep, or a batch beyond it.
        json: print JSON instead of a table.
    """
    from steelyard.laws.decisions.optima.training_recipe import recipe_for

    run = numbers(at, "--at")
    if set(run) != {"parameters", "tokens"} or not tokens_per_sequence > 0:
        raise ConfigError(
            f"--at names {', '.join(run)}; a recipe is for parameters and tokens",
            hint="such as --at parameters=1B tokens=50B; --tokens-per-sequence is above 0",
        )
    points = (table or TableOptions()).read(file)
    sweep = dict(points)
    if "batch_tokens" in sweep:
        sweep["batch_tokens"] = tokens_per_sequence * sweep["batch_tokens"]
    size, tokens = run["parameters"], run["tokens"]
    found = recipe_for(sweep, size, tokens, target=target, level=level, extrapolate=extrapolate)
    if json:
        print(dump(asdict(found)))
    else:
        recipe_page(found, points.source, level).print()
        say_next("laws", "allocate", "--published", "besiroglu2024", "--flops", 6 * size * tokens)
