"""`steelyard laws`: fit scaling laws to tables of runs, compare them, and decide with them."""

import cyclopts

from steelyard.cli.laws.checking import check
from steelyard.cli.laws.curves import schedule, study
from steelyard.cli.laws.decide import allocate, next_cell, predict, registry, theory
from steelyard.cli.laws.fitting import compare, fit, isoflop
from steelyard.cli.laws.foresee import forecast
from steelyard.cli.laws.rates import recipe
from steelyard.cli.laws.shrinking import shrink
from steelyard.cli.laws.tables import curate, select
from steelyard.laws import QUESTIONS

app = cyclopts.App(
    name="laws",
    help="Fit scaling laws to measured points and decide with them.\n\n"
    "In Python, `steelyard.laws` holds the same verbs, and a module per further question: "
    f"{', '.join(QUESTIONS)}.",
)
for verb in (
    fit,
    compare,
    forecast,
    check,
    predict,
    allocate,
    next_cell,
    isoflop,
    recipe,
    study,
    shrink,
    schedule,
    curate,
    select,
    registry,
    theory,
):
    app.command(verb, name="next" if verb is next_cell else verb.__name__)
