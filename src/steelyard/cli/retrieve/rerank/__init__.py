"""`steelyard retrieve rerank`: answers ordered by token vectors that lie on a drive."""

import cyclopts

app = cyclopts.App(name="rerank", help="Order answers by token vectors kept on a drive.")
VERBS: tuple[tuple[str, str, str], ...] = (
    (
        "build",
        "Encode texts word by word; words go to the drive, a small index stays in memory.",
        "papers.jsonl --out papers",
    ),
    (
        "search",
        "Find texts; documents are read from the drive while their candidates are searched.",
        'papers "heat transfer in a slender body"',
    ),
    (
        "plan",
        "Choose when to prefetch and how many documents to rank, for a latency and a drive.",
        "papers --p95 '20 ms' --drive pm9a3",
    ),
)
"""Verb, one line of help, and the words of its example."""
for name, text, example in VERBS:
    told = f"{text}\n\nExample: steelyard retrieve rerank {name} {example}"
    app.command(f"steelyard.cli.retrieve.rerank.{name}:{name}", name=name, help=told)
