"""The verbs about data and models: which pools to train on, which model to tune."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from steelyard.cli.following import say_next
from steelyard.cli.laws.answers import curation_page, selection_page
from steelyard.cli.laws.options import FLAG, MANY, TableOptions, dump, pairs
from steelyard.errors import ConfigError, DataError
from steelyard.units import parse

if TYPE_CHECKING:
    from steelyard.laws.decisions.selection.candidates import Candidate

__all__ = ["curate", "select"]

_Method = Literal["ats", "rectified", "vanilla", "subtuning", "zero_shot", "size", "halving"]
_LossUnit = Literal["per_token", "per_byte", "per_example"]


def curate(
    file: Path,
    *,
    samples: str,
    error: str = "error",
    pool: str = "pool",
    pool_size: Annotated[tuple[str, ...], MANY] = (),
    candidates: Literal["prefixes", "subsets"] = "prefixes",
    weights: Literal["size", "best"] = "size",
    table: TableOptions | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Choose the pools of data to train on, from runs on each pool alone.

    Example: steelyard laws curate pools.csv --samples 640M

    Args:
        file: CSV, Parquet or JSON lines with one checkpoint per row: pool, samples seen, pool_size
            in unique samples, and the error.
        samples: samples to be seen in all, such as 640M.
        error: column with the error, such as 1 - accuracy.
        pool: column with the name of the pool.
        pool_size: unique samples of pools that are now larger or smaller, POOL=NUMBER.
        candidates: choices to compare, the best pools (prefixes) or all subsets.
        weights: draw the chosen pools by their size, or at the best weights the law knows of.
        table: which columns and rows to read.
        json: print JSON instead of a table.
    """
    from steelyard.laws.decisions.curate import curate as choose
    from steelyard.laws.forms.pools.pool_fit import fit_pools

    points = (table or TableOptions()).read(file)
    if pool not in points.words:
        raise DataError(
            f"{file.name} has no column of words {pool!r}",
            hint=f"--pool takes one of {', '.join(points.words) or 'none: it holds numbers only'}",
        )
    fitted = fit_pools(points, error, points.words[pool], source=points.source)
    sizes = {
        name: parse(text, "count", where=f"--pool-size {name}")
        for name, text in pairs(pool_size, "--pool-size", "POOL=NUMBER").items()
    }
    found = choose(
        fitted,
        parse(samples, "count", where="--samples"),
        sizes or None,
        candidates=candidates,
        weights=weights,
    )
    if json:
        known = {name: asdict(item) for name, item in fitted.utilities().items()}
        print(dump(asdict(found) | {"utilities": known}))
    else:
        curation_page(found, fitted).print()
        if weights == "size":
            how = (*(table or TableOptions()).words(), "--weights", "best")
            say_next("laws", "curate", file, "--samples", samples, *how)


def select(
    file: Path,
    *,
    target_examples: str,
    method: _Method = "ats",
    max_examples: str = "",
    budget_flops: str = "",
    loss_unit: _LossUnit = "per_token",
    model: str = "model",
    force: Annotated[bool, FLAG] = False,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Choose the model that will be best after tuning on all data, from losses on less.

    Example: steelyard laws select losses.csv --target-examples 1.6M

    Args:
        file: CSV, Parquet or JSON lines with one row per model and size: model, examples (0 before
            tuning), loss (NaN where it diverged), parameters; tokens_per_example, tokenizer and
            flops_per_example where known.
        target_examples: examples of the final tuning, such as 1.6M.
        method: way to rank.
        max_examples: most examples any model was tuned on that may be looked at; an eighth of the
            target unless given.
        budget_flops: compute for all tuning; the largest sizes that it pays for are looked at.
        loss_unit: unit of the losses; per_token ones compare only within one tokenizer.
        model: column with the name of the model.
        force: rank losses per token across tokenizers all the same.
        json: print JSON instead of a table.
    """
    from steelyard.laws.decisions.selection.select import select_model

    named, losses = _models(file, model)
    found = select_model(
        named,
        losses,
        _count(target_examples, "--target-examples"),
        method=method,
        max_examples=_count(max_examples, "--max-examples") if max_examples else None,
        budget_flops=parse(budget_flops, "FLOP", where="--budget-flops") if budget_flops else None,
        loss_unit=loss_unit,
        force=force,
    )
    if json:
        print(dump(asdict(found) | {"best": found.best}))
    else:
        selection_page(found, file.name).print()
        other = "rectified" if method == "ats" else "ats"
        same = ("--target-examples", target_examples)
        say_next("laws", "select", file, *same, "--method", other)


def _count(text: str, option: str) -> int:
    """Read a whole number such as 1.6M."""
    value = parse(text, "count", where=option)
    if value < 1 or value != round(value):
        raise ConfigError(f"{option} {text!r} is no whole number above 0", hint="such as 1.6M")
    return int(value)


def _models(file: Path, model: str) -> "tuple[list[Candidate], dict[str, dict[int, float]]]":
    """Read the models and their losses by examples."""
    from steelyard.laws.decisions.selection.candidates import Candidate
    from steelyard.laws.tables.files import read_frame
    from steelyard.laws.tables.frames import number_columns, pick, word_columns

    frame = read_frame(file)
    pick(model, frame.columns, file.name)
    needed = {name: name for name in ("examples", "loss", "parameters")}
    numbers = number_columns(frame, needed, file.name)
    words = word_columns(frame, {})
    names = words.get(model)
    if names is None:
        raise DataError(
            f"{file.name}: column {model} holds numbers, not names",
            hint="name another with --model",
        )
    losses: dict[str, dict[int, float]] = {}
    rows: dict[str, int] = {}
    for row, name in enumerate(names.tolist()):
        size = int(numbers["examples"][row])
        if size in losses.setdefault(name, {}):
            raise DataError(
                f"{file.name}: {name} has two losses at {size} examples (row {row + 1}; the first "
                f"row is 1)",
                hint="keep one of them, or their mean",
            )
        losses[name][size] = float(numbers["loss"][row])
        rows.setdefault(name, row)
    more = {
        name: numbers[name]
        for name in ("tokens_per_example", "flops_per_example")
        if name in numbers
    }
    candidates = [
        Candidate(
            name=name,
            parameters=float(numbers["parameters"][row]),
            tokenizer=str(words["tokenizer"][row]) if "tokenizer" in words else "",
            **{key: float(column[row]) for key, column in more.items()},
        )
        for name, row in rows.items()
    ]
    return candidates, losses
