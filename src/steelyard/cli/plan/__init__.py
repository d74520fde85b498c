"""`steelyard plan`: which model, which machines, how many, and what they cost."""

import cyclopts

from steelyard.cli.plan.fit import fit
from steelyard.cli.plan.train import train
from steelyard.cli.plan.which import which

app = cyclopts.App(name="plan", help="Choose model size, layout and machines for a budget.")
for verb in (train, fit, which):
    app.command(verb)
