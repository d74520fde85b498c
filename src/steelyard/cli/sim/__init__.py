"""`steelyard sim`: machines in virtual time, under the policies that would run them."""

import cyclopts

app = cyclopts.App(name="sim", help="Replay machines in virtual time, under policies.")
VERBS: tuple[tuple[str, str, str], ...] = (
    (
        "power",
        "Replay a row of servers on one power budget: caps, brakes, and what requests wait.",
        "--added 12 --days 7 --report row.html",
    ),
    (
        "chain",
        "Follow requests to servers, watts, cooling and carbon: joules and grams of an answer.",
        "--servers 20 --days 1 --report chain.html",
    ),
)
"""Verb, one line of help, and the words of its example."""
for name, text, example in VERBS:
    told = f"{text}\n\nExample: steelyard sim {name} {example}"
    app.command(f"steelyard.cli.sim.{name}:{name}", name=name, help=told)
