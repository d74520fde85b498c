"""`steelyard retrieve`: the nearest vectors, from an index whose cost is known."""

import cyclopts

app = cyclopts.App(
    name="retrieve", help="Build indexes of texts or vectors, search, tune and serve them."
)
VERBS: tuple[tuple[str, str, str], ...] = (
    (
        "build",
        "Build an index of texts, or of the vectors in a file.",
        "~/notes",
    ),
    (
        "search",
        "Find the passages that answer a text, or the nearest vectors of queries.",
        '"how are backups made"',
    ),
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
    (
        "study",
        "Say what more passages are worth to a reader: losses over stores of many sizes, a law.",
        "notes-index --reader model --heldout other-notes",
    ),
)
"""Verb, one line of help, and the words of its example."""
for name, text, example in VERBS:
    told = f"{text}\n\nExample: steelyard retrieve {name} {example}".rstrip()
    app.command(f"steelyard.cli.retrieve.{name}:{name}", name=name, help=told)

app.command(
    "steelyard.cli.retrieve.tenants.auditing:audit",
    name="audit",
    help="Say which vectors of an answer a tenant could see at a past moment.\n\n"
    "Example: steelyard retrieve audit shared acme --ids 3,5 --at 2026-03-01T12:00:00Z",
)
app.command(
    "steelyard.cli.retrieve.tenants:app",
    name="tenants",
    help="Share one index: grants, searches per tenant, audits.",
)
app.command(
    "steelyard.cli.retrieve.rerank:app",
    name="rerank",
    help="Order answers by token vectors kept on a drive.",
)

app.command(
    "steelyard.cli.retrieve.towers:app",
    name="towers",
    help="Train encoders of texts on pairs, distil them, encode.",
)
