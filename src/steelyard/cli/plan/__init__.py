"""`steelyard plan`: which model, which machines, how many, and what they cost."""

import cyclopts

app = cyclopts.App(name="plan", help="Choose model size, layout and machines for a budget.")
# Each verb is imported when it is asked for: the laws alone take longer than this help.
for name, text in (
    ("train", "Plan the training run that a budget of compute, money or time buys."),
    ("fit", "Say where a model fits, how fast it is there, and for how much."),
    ("which", "Rank the accelerators of the catalog for one work by money, time and energy."),
):
    app.command(f"steelyard.cli.plan.{name}:{name}", name=name, help=text)
