"""Stores of token vectors beside fast-plaid: memory to build and search, on the same documents.

The largest of a few made collections that fast-plaid completes with 8 GiB in ten minutes is
compared; fast-plaid runs from an environment of its own.
"""

import tempfile
from pathlib import Path

from benchmarks.common import Check
from benchmarks.retrieve._token_peer import peer_checks

PAPER = ["48-espn"]

_MOST_S = 600


def run(quick: bool) -> list[Check]:
    """Build both and search."""
    with tempfile.TemporaryDirectory() as name:
        counts = (2000,) if quick else (2000, 5000, 10_000, 20_000, 40_000)
        return peer_checks(Path(name), counts, _MOST_S)
