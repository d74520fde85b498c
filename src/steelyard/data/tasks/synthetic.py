"""Tasks whose answers are known: copy a word, turn it around, add two numbers.

Each function makes one record of two texts from a random state; `Generated` makes a source of it.
"""

from collections.abc import Callable

import numpy as np

__all__ = ["SYNTHETIC", "add", "copy", "reverse"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def copy(rng: np.random.Generator) -> dict[str, str]:
    """Return a word of 3 to 12 letters that is to be said again."""
    word = _word(rng)
    return {"inputs": f"copy: {word}", "targets": word}


def reverse(rng: np.random.Generator) -> dict[str, str]:
    """Return a word of 3 to 12 letters that is to be said from its end."""
    word = _word(rng)
    return {"inputs": f"reverse: {word}", "targets": word[::-1]}


def add(rng: np.random.Generator) -> dict[str, str]:
    """Return two numbers of up to 4 digits and their sum."""
    one, other = rng.integers(0, 10_000, 2).tolist()
    return {"inputs": f"add: {one} + {other}", "targets": str(one + other)}


SYNTHETIC: dict[str, Callable[[np.random.Generator], dict[str, str]]] = {
    "add": add,
    "copy": copy,
    "reverse": reverse,
}
"""The functions by the name a recipe calls them."""


def _word(rng: np.random.Generator) -> str:
    """Draw a word."""
    return "".join(_LETTERS[place] for place in rng.integers(0, 26, rng.integers(3, 13)).tolist())
