"""`steelyard operate`: forecasts of what is watched, and controllers that act on them."""

import cyclopts

app = cyclopts.App(name="operate", help="Forecast what is watched, and act on it.")
VERBS: tuple[tuple[str, str, str], ...] = (
    (
        "coldstart",
        "Characterize the cold starts of a trace, or compare policies that spare them.",
        "simulate --days 3 --report cold.html",
    ),
    (
        "autoscale",
        "Replay a demand with every scaler, or serve the number of replicas it asks for.",
        "demand.csv --startup '3 min' --report autoscale.html",
    ),
    (
        "datacenter",
        "Run a site under every controller: energy, water, carbon, money, violations, regret.",
        "--datacenter free-cooled-1mw --start-day 190 --report site.html",
    ),
    (
        "forecast",
        "Forecast series with intervals, beside the record of rules and models on their own past.",
        "series.csv --horizon 48 --report forecast.html",
    ),
    (
        "pretrain",
        "Pretrain the masked encoder of `operate forecast`; a killed call goes on.",
        "recipes/forecaster.toml --out my-forecaster",
    ),
    (
        "shards",
        "Start a store of nodes that heals itself, or simulate what its policy does.",
        "up --nodes 4 --kill n1 --chart shards.png",
    ),
)
"""Verb, one line of help, and the words of its example."""
for name, text, example in VERBS:
    told = f"{text}\n\nExample: steelyard operate {name} {example}"
    app.command(f"steelyard.cli.operate.{name}:{name}", name=name, help=told)
