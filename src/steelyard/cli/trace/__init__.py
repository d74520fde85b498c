"""`steelyard trace`: what a trace of requests is like, a model of it, and the same at any rate."""

import cyclopts

app = cyclopts.App(name="trace", help="Look at traces of requests, model them, and scale them.")
VERBS: tuple[tuple[str, str, str], ...] = (
    ("show", "Show rates, lengths, bursts, shared prefixes and clients of a trace.", "day.csv"),
    (
        "fit",
        "Fit arrivals, lengths and sharing to a trace; what is chosen is tried on time held out.",
        "day.csv --out model.json",
    ),
    (
        "scale",
        "Write a trace at another rate, or as long as asked from a fitted model.",
        "day.csv --rate '20 request/s' --out busy.csv",
    ),
)
"""Verb, one line of help, and the words of its example."""
for name, text, example in VERBS:
    told = f"{text}\n\nExample: steelyard trace {name} {example}"
    app.command(f"steelyard.cli.trace.{name}:{name}", name=name, help=told)
