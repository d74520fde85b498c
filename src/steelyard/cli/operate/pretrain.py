"""`steelyard operate pretrain`: make the checkpoint of a masked encoder."""

from pathlib import Path

from steelyard.cli.output import Switch, print_json

__all__ = ["pretrain"]


def pretrain(
    recipe: Path | None = None,
    *,
    out: Path,
    data: Path | None = None,
    json: Switch = False,
) -> None:
    """Pretrain a masked encoder on generated series, and on one's own where they are given.

    A killed call goes on where it was. Without a recipe the shipped checkpoint is made anew.

    Example: steelyard operate pretrain recipes/forecaster.toml --out my-forecaster

    Args:
        recipe: TOML file; the recipe of the shipped checkpoint unless given.
        out: folder of the run; its forecaster.safetensors is for `operate forecast --checkpoint`.
        data: file of series to add to the generated ones, as `operate forecast` reads it.
        json: print JSON.
    """
    from steelyard.operate.forecast.networks.recipe import CHECKPOINT, PretrainRecipe, run_recipe
    from steelyard.operate.series import read_series
    from steelyard.runs.progress import progress
    from steelyard.runs.report import Facts, Report, Section

    plan = PretrainRecipe.load(recipe)
    own = read_series(data) if data is not None else None
    with progress("pretrain", total=plan.steps, quiet=json) as advance:
        made, result = run_recipe(
            plan,
            out,
            own=own,
            on_step=lambda now: advance(now.step, f"loss {now.loss:.4f}"),
        )
    path = out / CHECKPOINT
    values = {
        "checkpoint": str(path),
        "parameters": result.parameters,
        "steps": result.steps,
        "loss": result.losses[-1],
    }
    if json:
        print_json(values)
        return
    facts = [
        ("Checkpoint", str(path), ""),
        ("Parameters", f"{result.parameters:,}", ""),
        (
            "Loss of the last steps",
            f"{sum(result.losses[-50:]) / len(result.losses[-50:]):.4f}",
            "",
        ),
    ]
    Report(f"{made.name}, pretrained", "", [Section("", [Facts(facts)])]).print()
