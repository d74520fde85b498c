"""`steelyard laws`: fit scaling laws to tables of runs, compare them, and decide with them."""

import cyclopts

from steelyard.cli.laws.checking import check
from steelyard.cli.laws.decide import allocate, next_cell, predict, registry, theory
from steelyard.cli.laws.fitting import compare, fit, isoflop
from steelyard.cli.laws.rates import recipe
from steelyard.cli.laws.tables import curate, select

app = cyclopts.App(name="laws", help="Fit scaling laws to measured points and decide with them.")
verbs = (fit, compare, check, predict, allocate, next_cell, isoflop, recipe, curate, select)
for verb in (*verbs, registry, theory):
    app.command(verb, name="next" if verb is next_cell else verb.__name__)
