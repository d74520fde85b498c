"""Evaluates the formulas that `--why` prints: + - x / ^ ( ) and max, min and ceil of numbers."""

import math
import re

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?(?:e-?\d+)?)|(max|min|ceil)|(x(?![a-z])|[-+/^(),]))")
_CALLS = {"max": max, "min": min, "ceil": math.ceil}


def evaluate(text):
    """Return the value of a formula whose names are numbers already; anything else is refused."""
    tokens = []
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        assert found, f"{text[at:]!r} is no arithmetic"
        tokens.append(found[1] or found[2] or found[3])
        at = found.end()
    value, rest = _sum(tokens)
    assert not rest, f"{rest} is left over of {text!r}"
    return value


def _sum(tokens):
    value, tokens = _product(tokens)
    while tokens and tokens[0] in "+-":
        sign, (more, tokens) = tokens[0], _product(tokens[1:])
        value = value + more if sign == "+" else value - more
    return value, tokens


def _product(tokens):
    value, tokens = _power(tokens)
    while tokens and tokens[0] in "x/":
        sign, (more, tokens) = tokens[0], _power(tokens[1:])
        value = value * more if sign == "x" else value / more
    return value, tokens


def _power(tokens):
    value, tokens = _atom(tokens)
    if tokens and tokens[0] == "^":
        more, tokens = _atom(tokens[1:])
        value **= more
    return value, tokens


def _atom(tokens):
    first, *rest = tokens
    if first == "(":
        value, rest = _sum(rest)
        assert rest[0] == ")"
        return value, rest[1:]
    if first in _CALLS:
        values, rest = [], rest  # the parenthesis is a comma before the first argument
        assert rest[0] == "("
        while rest[0] in "(,":
            value, rest = _sum(rest[1:])
            values.append(value)
        assert rest[0] == ")"
        return _CALLS[first](*values), rest[1:]
    return float(first), rest
