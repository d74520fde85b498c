"""`steelyard retrieve tenants`: one index that many share, each seeing what it was granted."""

import cyclopts

app = cyclopts.App(name="tenants", help="Share one index: grants, searches per tenant, audits.")
VERBS: tuple[tuple[str, str, str, str], ...] = (
    (
        "plan",
        "planning",
        "Say how tenants should share vectors: bytes and time of four ways, before any is built.",
        '"1 M x 128, 200 tenants, seen by 5, recall .95, 2 GB"',
    ),
    (
        "generate",
        "generate",
        "Make vectors, queries and grants to try an index for tenants with.",
        "demo --tenants 50",
    ),
    (
        "build",
        "build",
        "Build an index that tenants share, from vectors and a table of grants.",
        "vectors.npy --grants grants.csv --out shared",
    ),
    (
        "search",
        "search",
        "Find the nearest vectors of those that a tenant sees, or that a condition admits.",
        "shared queries.npy --tenant acme",
    ),
    ("grant", "changes", "Let a tenant see vectors.", "shared acme --ids 3,5,8"),
    ("revoke", "changes", "Hide vectors from a tenant.", "shared acme --ids 5"),
    (
        "tune",
        "tuning",
        "Find how many vectors to compare for a recall, and check it on other queries.",
        "shared queries.npy --recall 0.95",
    ),
    (
        "audit",
        "auditing",
        "Say which vectors of an answer a tenant could see at a past moment.",
        "shared acme --ids 3,5 --at 2026-03-01T12:00:00Z",
    ),
)
"""Verb, its file, one line of help, and the words of its example."""
for name, module, text, example in VERBS:
    told = f"{text}\n\nExample: steelyard retrieve tenants {name} {example}"
    app.command(f"steelyard.cli.retrieve.tenants.{module}:{name}", name=name, help=told)
