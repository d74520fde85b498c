"""`steelyard retrieve towers`: encoders of texts, trained on pairs, distilled, used."""

import cyclopts

app = cyclopts.App(name="towers", help="Train encoders of texts on pairs, distil them, encode.")
VERBS: tuple[tuple[str, str, str], ...] = (
    (
        "train",
        "Train two towers on queries with their documents, the second round on hard ones.",
        "papers.jsonl --query title --document abstract --out towers",
    ),
    (
        "distill",
        "Train a small tower of queries to return a large one's vectors; documents stay.",
        "towers/queries queries.jsonl --query text --out student",
    ),
    (
        "encode",
        "Turn texts into vectors; goes on where it was killed, and names the encoder beside.",
        "towers/documents papers.jsonl --document abstract --out vectors.npy",
    ),
)
"""Verb, one line of help, and the words of its example."""
for name, text, example in VERBS:
    told = f"{text}\n\nExample: steelyard retrieve towers {name} {example}"
    app.command(f"steelyard.cli.retrieve.towers.{name}:{name}", name=name, help=told)
