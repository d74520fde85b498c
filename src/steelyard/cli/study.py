"""`steelyard train study`: the runs of a recipe over sizes, lengths, rates and seeds."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard import config as configs
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_json
from steelyard.runs.progress import progress
from steelyard.runs.report import Block, Cell, Checks, Column, Report, Section, Table, Text
from steelyard.units import pretty, pretty_duration

if TYPE_CHECKING:
    from steelyard.quantity import Check, Forecast, Measurement
    from steelyard.train.study import StudyOutcome, StudyRecipe

__all__ = ["study"]


def study(
    recipe: Path,
    *,
    data: Path,
    out: Path | None = None,
    jobs: int = 0,
    price: Switch = False,
    json: Switch = False,
) -> None:
    """Train every run of a study; the same line goes on after a kill.

    Example: steelyard train study recipes/ladder.toml --data tokens

    Args:
        recipe: TOML or JSON file with the study; see recipes/ladder.toml.
        data: folder of token shards that `steelyard data prepare` made.
        out: folder of the study: a folder per model, and a run store in `runs`; the recipe's name
            where it is left out.
        jobs: runs at once; 0 for as many as the cores allow at the recipe's threads.
        price: time a few steps, print what the study would take, and stop.
        json: print the results as JSON.
    """
    from steelyard.train.study import OpenStudy, StudyRecipe, cell_keeper
    from steelyard.weigh.held_out import best_points, forecast_largest

    wanted = configs.load(recipe, StudyRecipe)
    out = Path(recipe.stem) if out is None else out
    with ExitStack() as held:
        # The price comes first, on a line of its own: whoever finds it too dear stops here.
        with progress("timing a few steps", quiet=json):
            opened = held.enter_context(OpenStudy(wanted, data, out, jobs=jobs))
        said, left = opened.price()
        tokens = sum(cell.steps * cell.config.tokens_per_step for cell in left)
        if price and json:
            print_json({"forecast": configs.to_plain(said), "runs": len(left), "tokens": tokens})
            return
        if not json:
            words = f"{len(left)} runs of {pretty(tokens, 'token')} take {_span(said)}"
            print(f"{words} ({said.provenance}: {said.source})", flush=True)
        if price:
            return
        with progress(f"study {recipe.stem}", quiet=json) as advance:
            found = opened.run(on_cell=cell_keeper(out), advance=advance)
    _keep_time(wanted, out, found)
    check = forecast_largest(best_points(found.cells))
    if json:
        print_json(_plain(found, check))
        return
    _page(recipe.stem, out, found, check).print()
    say_next("laws", "compare", out)
    ended = [(item.result.eval_loss, item.cell.folder) for item in found.cells if item.result]
    if ended:
        say_next("serve", out / min(ended)[1])


def _keep_time(recipe: "StudyRecipe", out: Path, found: "StudyOutcome") -> None:
    """Write the study's time beside its forecast into the store, where the ledger reads it."""
    from steelyard.runs.stages import Stages
    from steelyard.runs.store import RunStore

    def work() -> str:
        store = RunStore(out / "runs")
        plain = configs.to_plain(recipe)
        with store.create("study", plain, seed=recipe.train.seed, name=out.resolve().name) as run:
            run.forecast(found.forecast)
            run.measure(_wall(found))
        return run.id

    # Once for each list of cells: a later call of a finished study measures nothing.
    Stages(out / "stages").run("study", [item.cell.folder for item in found.cells], str, work)


def _wall(found: "StudyOutcome") -> "Measurement":
    """Return the time that all calls of a study took."""
    from steelyard.quantity import Measurement

    return Measurement(quantity="study.wall_time", value=found.wall_s, spread=0.0, count=1)


def _span(said: "Forecast") -> str:
    """Write a forecast time with its interval."""
    low, high = pretty_duration(said.low), pretty_duration(said.high)
    return f"{pretty_duration(said.value)} ({low} to {high})"


def _plain(found: "StudyOutcome", check: "Check | None") -> dict[str, Any]:
    """Return what programs want to know."""
    cells = [
        {
            "folder": item.cell.folder,
            "failure": item.failure,
            "learning_rate": item.cell.config.learning_rate,
            "seed": item.cell.config.seed,
            "measurements": configs.to_plain(item.result.measurements()) if item.result else [],
        }
        for item in found.cells
    ]
    return {
        "runs": cells,
        "forecast": configs.to_plain(found.forecast),
        "wall_s": found.wall_s,
        "held_out": configs.to_plain(check),
    }


def _page(name: str, out: Path, found: "StudyOutcome", check: "Check | None") -> Report:
    """Show every run, and how the largest model was foreseen."""
    from steelyard.quantity import Check

    rows: list[list[Cell]] = []
    for item in found.cells:
        done = item.result
        rows.append(
            [
                item.cell.folder,
                pretty(done.parameters, "parameter") if done else "",
                pretty(done.tokens, "token") if done else "",
                f"{item.cell.config.learning_rate:.3g}",
                f"{done.eval_loss:.4f}" if done else item.failure,
                f"{done.bits_per_byte:.4f}" if done else "",
                pretty(done.tokens_per_s, "token/s") if done else "",
            ]
        )
    heads = [Column("run")] + [
        Column(word, align="right", rank=rank)
        for word, rank in (
            ("parameters", 0),
            ("tokens", 0),
            ("rate", 1),
            ("loss", 0),
            ("bits per byte", 1),
            ("speed", 1),
        )
    ]
    checks = [Check(found.forecast, _wall(found)), *([check] if check else [])]
    words = (
        "The loss is that of the largest model's longest run, forecast from the smaller models."
        if check
        else "Smaller models of two sizes, several lengths each, would foretell the largest."
    )
    blocks: list[Block] = [Checks(checks), Text(words)]
    sections = [Section("Forecast and measured", blocks), Section("Runs", [Table(heads, rows)])]
    return Report(f"Study {name}", f"runs kept in {out / 'runs'}", sections)
