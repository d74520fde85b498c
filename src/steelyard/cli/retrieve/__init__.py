"""`steelyard retrieve`: the nearest vectors, from an index whose cost is known."""

import cyclopts

app = cyclopts.App(name="retrieve", help="Build indexes of vectors, search and tune them.")
VERBS: tuple[tuple[str, str, str], ...] = (
    (
        "build",
        "Build an index of vectors in a file: exact, in cells, or as short codes in cells.",
        "vectors.npy --out my.index --kind ivfpq",
    ),
    ("search", "Find the nearest vectors of each query.", "my.index queries.npy --k 10"),
    (
        "exact",
        "Find the largest inner products in a file of vectors, exactly and without an index.",
        "vectors.npy queries.npy --k 1000",
    ),
    (
        "tune",
        "Find the fewest cells to look into for a recall, and check them on other queries.",
        "my.index queries.npy --vectors vectors.npy --recall 0.95",
    ),
    (
        "calibrate",
        "Measure how fast this machine searches and builds indexes, in about a minute.",
        "",
    ),
    (
        "serve",
        "Serve indexes over HTTP: searches, new vectors, metrics; several are shards of one.",
        "my.index --port 8008",
    ),
)
"""Verb, one line of help, and the words of its example."""
for name, text, example in VERBS:
    told = f"{text}\n\nExample: steelyard retrieve {name} {example}".rstrip()
    app.command(f"steelyard.cli.retrieve.{name}:{name}", name=name, help=told)

app.command(
    "steelyard.cli.retrieve.tenants:app",
    name="tenants",
    help="Share one index: grants, searches per tenant, audits.",
)
