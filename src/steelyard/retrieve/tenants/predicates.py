"""Conditions on tenants: names joined by AND, OR and NOT."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError

__all__ = ["TenantCondition", "parse_condition"]

Rows = NDArray[np.int32]
_TOKEN = re.compile(r'\s*(?:([()])|"([^"]*)"|([^\s()"]+))')
_WORDS = ("AND", "OR", "NOT")
_MOST_TERMS = 256


@dataclass(frozen=True, slots=True)
class TenantCondition:
    """A condition in the order in which a stack works it out.

    Attributes:
        steps: names of tenants, and the words AND, OR and NOT behind what they join; the flag says
            which is which.
    """

    steps: tuple[tuple[str, bool], ...]

    @property
    def names(self) -> list[str]:
        """Names of the tenants, each once."""
        return list(dict.fromkeys(text for text, is_name in self.steps if is_name))

    def rows(self, rows_of: Callable[[str], Rows], everything: Callable[[], Rows]) -> Rows:
        """Return the rows for which the condition holds.

        Args:
            rows_of: returns the rows of a tenant.
            everything: returns all rows, which NOT alone needs.

        Returns:
            Rows, ascending.
        """
        stack: list[Rows] = []
        for text, is_name in self.steps:
            if is_name:
                stack.append(np.sort(rows_of(text)))
            elif text == "NOT":
                stack.append(np.setdiff1d(everything(), stack.pop(), assume_unique=True))
            else:
                right, left = stack.pop(), stack.pop()
                is_and = text == "AND"
                found = np.intersect1d(left, right) if is_and else np.union1d(left, right)
                stack.append(found)
        return stack[0]


def parse_condition(text: str) -> TenantCondition:
    """Read a condition such as `cs.CL AND NOT (cs.LG OR "a tenant")`.

    NOT binds closer than AND, AND closer than OR. Names with blanks, brackets or of a reserved word
    stand between double quotes.

    Args:
        text: the condition.

    Returns:
        The condition.

    Raises:
        ConfigError: it cannot be read (the place is named), or has more than 256 parts.
    """
    return _Parser(text, list(_tokens(text))).parsed()


def _tokens(text: str) -> Iterator[tuple[str, bool, int]]:
    """Yield words, whether they are names, and where they stand."""
    place = 0
    while place < len(text.rstrip()):
        found = _TOKEN.match(text, place)
        if found is None:
            raise ConfigError(f"a quote is open at {text[place:]!r}", hint='end it with "')
        bracket, quoted, word = found.groups()
        if quoted is not None:
            yield str(quoted), True, found.start()
        else:
            value = str(bracket or word)
            is_name = not bracket and value.upper() not in _WORDS
            yield value if is_name else value.upper(), is_name, found.start()
        place = found.end()


class _Parser:
    """Reads tokens from the left, the loosest word first."""

    def __init__(self, text: str, tokens: Sequence[tuple[str, bool, int]]) -> None:
        self._text, self._tokens, self._at = text, tokens, 0
        self._steps: list[tuple[str, bool]] = []

    def parsed(self) -> TenantCondition:
        """Read the whole text."""
        if len(self._tokens) > _MOST_TERMS:
            raise ConfigError(f"a condition of {len(self._tokens)} parts, {_MOST_TERMS} at most")
        self._joined("OR", lambda: self._joined("AND", self._one))
        if self._at < len(self._tokens):
            self._refuse()
        return TenantCondition(tuple(self._steps))

    def _next(self) -> tuple[str, bool]:
        """Return the next token; nothing at the end."""
        if self._at == len(self._tokens):
            return "", False
        text, is_name, _ = self._tokens[self._at]
        return text, is_name

    def _joined(self, word: str, part: Callable[[], None]) -> None:
        part()
        while self._next() == (word, False):
            self._at += 1
            part()
            self._steps.append((word, False))

    def _one(self) -> None:
        text, is_name = self._next()
        if not is_name and text not in ("NOT", "("):
            self._refuse()
        self._at += 1
        if is_name:
            self._steps.append((text, True))
        elif text == "NOT":
            self._one()
            self._steps.append(("NOT", False))
        else:
            self._joined("OR", lambda: self._joined("AND", self._one))
            if self._next() != (")", False):
                self._refuse()
            self._at += 1

    def _refuse(self) -> None:
        """Say where the condition cannot be read."""
        at_end = self._at == len(self._tokens)
        place = len(self._text) if at_end else self._tokens[self._at][2]
        rest = self._text[place:].strip() or "its end"
        raise ConfigError(
            f"the condition {self._text!r} cannot be read at {rest!r}",
            hint='write it like: a AND NOT (b OR "c d")',
        )
