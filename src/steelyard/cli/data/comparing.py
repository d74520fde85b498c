"""`steelyard data table compare`: learners side by side under one time budget."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steelyard.cli.data.scanned import Sources, kinds_of, names_of, scanned
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.runs.progress import progress
from steelyard.runs.report import Block, Cell, Column, Facts, Report, Section, Table, Text
from steelyard.units import parse

if TYPE_CHECKING:
    from steelyard.data.learning import ComparedLearner, ComparedTable

__all__ = ["compare"]


def compare(
    *sources: Sources,
    target: str,
    time: str = "60s",
    learners: str = "",
    out: Path | None = None,
    task: Literal["classify", "regress"] | None = None,
    leave_out: str = "",
    by: str = "",
    held: float = 0.2,
    memory: str = "",
    seed: int = 0,
    types: str = "",
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Fit a family of learners within one time budget, and say which predicts best.

    Each round doubles the rows. Half of the rows kept aside rank the learners, the other half
    measure them. The loss over rows says what more rows would bring.

    Example: steelyard data table compare 'sales/*.csv' --target returned --leave-out id --time 60s

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        target: column to predict.
        time: time for all fits, such as 60s or 5min; the passes over the table come before.
        learners: boosted, forest, linear, ridge, bayes, neighbours, kernel, neural, separated by
            commas; all that can predict the target when left out.
        out: file for the best model.
        task: classify or regress; by what the column looks like when left out.
        leave_out: columns that are not learned from, such as keys, separated by commas.
        by: column whose equal values stay on one side, such as a customer.
        held: share of rows that are kept aside.
        memory: most bytes that the first passes may take, such as 200MB.
        seed: changes which rows are kept aside, and what is drawn.
        types: kinds of columns of text files, such as "id=text, price=number".
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    import tempfile

    if not 0 < held < 1:
        raise ConfigError(f"--held is {held:g}, but must be above 0 and below 1")
    table = scanned(sources, kinds_of(types))
    from steelyard.data.learning import CompareOptions, FitOptions, compare_table

    fit = FitOptions(
        target=target,
        task=task,
        leave_out=names_of(leave_out),
        held_share=held,
        by=by,
        memory=memory,
        seed=seed,
    )
    options = CompareOptions(fit=fit, time_s=parse(time, "s"), **_chosen(names_of(learners)))
    with progress("compare", total=5.0, quiet=json) as advance:
        stages, passed = {"bins": 0.0, "codes": 1.0}, [0.0]

        def done(what: str, share: float) -> None:
            # Codes and features have two passes each; the fits come last.
            at = stages.get(what, 4.0) + min(share, 1.0)
            passed[0] = max(passed[0], at)
            advance(passed[0], what)

        with tempfile.TemporaryDirectory() as name:
            found = compare_table(table, options, Path(name) / "rows", done=done)
    if out is not None:
        found.learners[0].model.save(out)
    print_report(_page(found, target), json=json, html=report, values=_values(found))
    if out is not None and not json:
        say_next("data", "table", "predict", out, *sources, "--out", "predicted.parquet")


def _chosen(names: list[str]) -> dict[str, Any]:
    """Return what is compared, and learners that stand above tables where they are wanted."""
    from steelyard.data.learning import LEARNERS

    known = [*LEARNERS, "neural"]
    if wrong := [name for name in names if name not in known]:
        raise ConfigError(f"no learner {wrong[0]!r}", hint=f"learners are {', '.join(known)}")
    # Its library takes a second to load, which a comparison of other learners need not wait for.
    if names and "neural" not in names:
        return {"learners": names}
    from steelyard.train.tabular import NeuralConfig

    return {"learners": names, "more": {"neural": NeuralConfig()}}


def _page(found: "ComparedTable", target: str) -> Report:
    """Return the page of a comparison."""
    names = [item.name for item in found.learners[0].scores]
    columns = [Column("learner"), Column("rows"), Column("seconds")]
    for name in names:
        columns += [Column(name), Column("low"), Column("high")]
    rows: list[list[Cell]] = []
    for learner in found.learners:
        line: list[Cell] = [learner.name, learner.rows, learner.fit_s]
        for item in learner.scores:
            line += [item.value, item.low, item.high]
        rows.append(line)
    constant: list[Cell] = ["constant", found.rows, 0.0]
    for item in found.learners[0].scores:
        constant += [item.baseline, None, None]
    best = found.learners[0]
    told = (
        "the first has the least loss of the rows that choose; measured on "
        f"{found.measured:,} rows that chose nothing; 80 % intervals"
    )
    blocks: list[Block] = [Table(columns, [*rows, constant], told)]
    blocks += [Text(f"{name} was left out: {why}") for name, why in found.left_out.items()]
    blocks += [Text(line) for line in found.warnings]
    return Report(
        f"Learners of {target}",
        f"{found.rows:,} rows, fits of {found.took_s:.1f} s",
        [Section("Compared", blocks), Section("More rows", _more(best))],
    )


def _more(best: "ComparedLearner") -> list[Block]:
    """Return what more rows would bring the best learner."""
    points: list[list[Cell]] = [[rows, loss] for rows, loss in best.points]
    table = Table([Column("rows"), Column("loss")], points, f"of {best.name}, by rows learned from")
    law = best.law()
    if law is None:
        return [table, Text("fewer than four samples: nothing is said of more rows")]
    facts = []
    for times in (2, 10):
        said = law.predict({"samples": [float(best.rows * times)]})
        value, low, high = said.value[0], said.low[0], said.high[0]
        told = f"{value:.4g} ({low:.4g} to {high:.4g})"
        facts.append((f"loss at {times}x the rows", told, "fitted"))
    return [table, Facts(facts), Text(f"The law is {law.law.formula}, with 80 % intervals.")]


def _values(found: "ComparedTable") -> dict[str, Any]:
    """Return the figures, for programs."""
    return {
        "best": found.learners[0].name,
        "rows": found.rows,
        "measured": found.measured,
        "took_s": found.took_s,
        "learners": {
            item.name: {
                "rows": item.rows,
                "fit_s": item.fit_s,
                "loss": item.loss,
                "scores": {
                    score.name: {
                        "value": score.value,
                        "low": score.low,
                        "high": score.high,
                        "baseline": score.baseline,
                    }
                    for score in item.scores
                },
                "curve": [{"rows": rows, "loss": loss} for rows, loss in item.points],
            }
            for item in found.learners
        },
        "left_out": found.left_out,
        "warnings": found.warnings,
    }
