"""The verb that scores a law of others on one's own runs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from steelyard.cli.following import say_next
from steelyard.cli.laws.answers import check_page
from steelyard.cli.laws.options import FLAG, MANY, TableOptions, dump, numbers, source_fit
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    from steelyard.laws.fitting.fitted import Fit
    from steelyard.laws.registry import PublishedLaw

__all__ = ["check"]


def check(
    file: Path,
    *,
    law: str,
    target: str = "loss",
    fix: Annotated[tuple[str, ...], MANY] = (),
    table: TableOptions | None = None,
    level: float = 0.8,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Score a published law, or a fit of other runs, on the runs of a table.

    Example: steelyard laws check runs.csv --law besiroglu2024

    Args:
        file: CSV, Parquet or JSON lines with one run per row, or the folder of a run store.
        law: name of a published law, a file made by `laws fit --out`, or the name of a form with
            all its parameters given by --fix.
        target: what the law predicts, one of the columns by its new name.
        fix: the parameters of a form, NAME=VALUE.
        table: which columns and rows to read.
        level: probability inside the intervals, 0..1.
        json: print JSON instead of a table.
    """
    from steelyard.laws.decisions.check_law import check_law

    options = table or TableOptions()
    found = check_law(_law(law, fix), options.read(file), target, level=level)
    if json:
        more: dict[str, Any] = {"is_rejected": found.is_rejected, "verdict": found.verdict}
        print(dump(asdict(found) | more))
    else:
        check_page(found).print()
        say_next("laws", "compare", file, *options.words())


def _law(name: str, fix: tuple[str, ...]) -> "PublishedLaw | Fit":
    """Take a published law, a stored fit, or a form whose every parameter is given."""
    import numpy as np

    from steelyard import laws

    given = numbers(fix, "--fix")
    if not given:
        return laws.published[name] if name in laws.published else source_fit(name)
    form = laws.law_named(name)
    missing = [item for item in form.names if item not in given]
    strange = [item for item in given if item not in form.names]
    if missing or strange:
        raise ConfigError(
            f"--fix must give every parameter of {name}: "
            + (f"missing {', '.join(missing)}" if missing else f"it has no {', '.join(strange)}"),
            hint=f"its parameters: {', '.join(form.names)}; laws fit --fix holds only some",
        )
    theta = form.coordinates(given)
    return laws.Fit(
        law=form,
        theta=theta,
        samples=np.zeros((0, len(theta))),
        provenance="assumed",
        source="numbers given by --fix",
    )
