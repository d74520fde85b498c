"""`steelyard data`: texts, tables and lakes, logs, baskets and graphs, and what they hold."""

import cyclopts

app = cyclopts.App(
    name="data",
    help="Clean, deduplicate and tokenize text into verified shards; look at tables in files.",
)
VERBS: tuple[tuple[str, str, str, str], ...] = (
    (
        "prepare",
        "text",
        "Make token shards from files and folders; run it again to continue after a kill.",
        "texts --out tokens --vocab-size 4096",
    ),
    (
        "show",
        "text",
        "Check the hashes of a folder of token shards and show what it holds.",
        "tokens",
    ),
    (
        "cache",
        "text",
        "Prepare the tasks of a recipe once; run it again to continue after a kill.",
        "recipes/mixture.toml --out caches",
    ),
    (
        "inspect",
        "text",
        "Show what caches hold, or the stream that a recipe's task or mixture makes.",
        "recipes/mixture.toml --cache caches --length 1024",
    ),
    (
        "prune",
        "pruning",
        "Write token shards of the hardest or the easiest documents only: hard ones pay where data "
        "are plenty, easy ones where they are scarce.",
        "tokens --scores costs.parquet --keep 0.5 --out pruned",
    ),
)
"""Verb, its file, one line of help, and the words of its example."""
for name, module, text, example in VERBS:
    told = f"{text}\n\nExample: steelyard data {name} {example}"
    app.command(f"steelyard.cli.data.{module}:{name}", name=name, help=told)

NOUNS: tuple[tuple[str, str], ...] = (
    ("table", "Look at tables in files: CSV, JSON lines, Parquet, Arrow."),
    ("logs", "Parse, watch, compress and search logs; find odd sessions."),
    ("communities", "Index a network once; find the community around accounts at once."),
    ("pack", "Keep tables as steelpack files, look into them, choose a format."),
    ("lake", "Find tables of a lake that lie in others, and delete what can be rebuilt."),
    ("govern", "Check anonymity, answer with noise on a budget, erase keys, audit, find bias."),
    ("itemsets", "Find what occurs together in baskets, rules between items, and what that takes."),
)
"""Nouns with verbs of their own, each an `app` in its file, and one line of help."""
for name, text in NOUNS:
    app.command(f"steelyard.cli.data.{name}:app", name=name, help=text)
