"""Questions about long contexts, drawn from a seed, with known answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.errors import ConfigError, DataError

__all__ = ["TASKS", "Question", "TaskKind", "Template", "draw_questions", "draw_texts"]

TaskKind = Literal["needle", "recall", "tracking", "text"]
TASKS: tuple[TaskKind, ...] = ("needle", "recall", "tracking")
"""Tasks with right and wrong answers; "text" is judged by its loss."""
_TAIL = 48
"""Tokens before, and tokens of, the piece of text whose loss is taken."""
_SPACING = 64
"""Tokens of context for each record of "recall" and "tracking"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """How records and questions are written.

    Attributes:
        define: states a value; "{key}" and "{value}" stand in it.
        ask: asks for the value of "{key}"; the answer is what follows.
        alias: states that "{key}" has the value of "{other}".
        hop: what an answer says before the value when it had to follow "{other}".
        keys: letters of keys.
        key_length: letters of a key.
        values: letters of values.
        value_length: letters of a value.
    """

    define: str = "The code of {key} is{value}.\n"
    ask: str = "The code of {key} is"
    alias: str = "The code of {key} is that of {other}.\n"
    hop: str = ""
    keys: str = "abcdefghijklmnopqrstuvwxyz"
    key_length: int = 6
    values: str = "0123456789"
    value_length: int = 5

    def __post_init__(self) -> None:
        """Refuse templates without their places.

        Raises:
            ConfigError: a place is missing, or there are too few letters.
        """
        for name, places in (
            ("define", ("{key}", "{value}")),
            ("ask", ("{key}",)),
            ("alias", ("{key}", "{other}")),
        ):
            if missing := [place for place in places if place not in getattr(self, name)]:
                raise ConfigError(f"template {name} lacks {', '.join(missing)}")
        if len(self.keys) ** self.key_length < 16 or not self.values or self.value_length < 1:
            raise ConfigError("a template needs at least 16 keys, and letters for values")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One context with a question about it, as tokens.

    Attributes:
        task: what is asked.
        length: tokens of context and question that were asked for.
        depth: where the record stands, 0 at the beginning and 1 at the end.
        context: what is read.
        question: what comes after it.
        answer: what has to follow.
    """

    task: TaskKind
    length: int
    depth: float
    context: tuple[int, ...]
    question: tuple[int, ...]
    answer: tuple[int, ...]


Encode = Callable[[str], Sequence[int]]


def draw_questions(
    task: TaskKind,
    length: int,
    count: int,
    *,
    text: np.ndarray,
    encode: Encode,
    template: Template,
    seed: int,
) -> list[Question]:
    """Draw questions of one task and length; where records stand covers the whole context evenly.

    "needle" hides one record in text; "recall" asks for one of many; "tracking" asks for a key
    that is stated to be another's.

    Args:
        task: "needle", "recall" or "tracking".
        length: tokens of context and question together.
        count: questions.
        text: int64 [N] tokens of real text to fill up with.
        encode: turns a string into tokens, without any that begin a text.
        template: how records are written.
        seed: seed of all draws.

    Returns:
        The questions.

    Raises:
        DataError: the text is shorter than a context.
        ConfigError: the length does not hold the records.
    """
    if len(text) <= length:
        raise DataError(f"{len(text)} tokens of text cannot fill {length}", hint="give more text")
    rng = np.random.default_rng((seed, length, TASKS.index(task)))
    return [
        _question(task, length, (row + 0.5) / count, rng, text, encode, template)
        for row in range(count)
    ]


def draw_texts(length: int, count: int, *, text: np.ndarray, seed: int) -> list[Question]:
    """Draw pieces of real text whose last tokens are to be told from those before.

    Args:
        length: tokens of each, the last ones included.
        count: pieces.
        text: int64 [N] tokens of real text.
        seed: seed of the places.

    Returns:
        Questions of the task "text".

    Raises:
        DataError: the text is shorter than a piece.
        ConfigError: a piece would have no context.
    """
    if len(text) <= length:
        raise DataError(f"{len(text)} tokens of text hold no {length}", hint="give more text")
    if length <= 2 * _TAIL:
        raise ConfigError(f"a length of {length} is below {2 * _TAIL + 1}")
    rng = np.random.default_rng((seed, length, len(TASKS)))
    found = []
    for start in rng.integers(0, len(text) - length, count).tolist():
        row = [int(token) for token in text[start : start + length]]
        found.append(
            Question(
                task="text",
                length=length,
                depth=1.0,
                context=tuple(row[: -2 * _TAIL]),
                question=tuple(row[-2 * _TAIL : -_TAIL]),
                answer=tuple(row[-_TAIL:]),
            )
        )
    return found


def _question(
    task: TaskKind,
    length: int,
    depth: float,
    rng: np.random.Generator,
    text: np.ndarray,
    encode: Encode,
    template: Template,
) -> Question:
    """Draw one question."""
    num_records = 1 if task == "needle" else max(3, length // _SPACING)
    keys = _keys(rng, template, num_records + 1)
    values = [_letters(rng, template.values, template.value_length) for _ in range(num_records)]
    records = [
        template.define.format(key=key, value=value)
        for key, value in zip(keys, values, strict=False)
    ]
    asked = min(int(depth * num_records), num_records - 1)
    places = [depth] if task == "needle" else [(i + 0.5) / num_records for i in range(num_records)]
    key, answer = keys[asked], values[asked]
    if task == "tracking":
        # The alias stands anywhere behind what it names, as a variable that is assigned later.
        key, other = keys[-1], key
        records.append(template.alias.format(key=key, other=other))
        places.append(float(rng.uniform(places[asked], 1.0)))
        answer = template.hop.format(other=other) + answer
    question = tuple(encode(template.ask.format(key=key)))
    context = _filled(records, places, length - len(question), rng, text, encode)
    return Question(
        task=task,
        length=length,
        depth=depth,
        context=tuple(context),
        question=question,
        answer=tuple(encode(answer)),
    )


def _keys(rng: np.random.Generator, template: Template, count: int) -> list[str]:
    """Draw different keys."""
    found: dict[str, None] = {}
    most = len(template.keys) ** template.key_length
    if count > most:
        raise ConfigError(f"{count} records need as many keys, and the template has {most}")
    while len(found) < count:
        found[_letters(rng, template.keys, template.key_length)] = None
    return list(found)


def _letters(rng: np.random.Generator, letters: str, count: int) -> str:
    """Draw letters."""
    return "".join(letters[place] for place in rng.integers(0, len(letters), count))


def _filled(
    records: list[str],
    places: list[float],
    length: int,
    rng: np.random.Generator,
    text: np.ndarray,
    encode: Encode,
) -> list[int]:
    """Lay records at their places in text, `length` tokens in all."""
    coded = [list(encode(records[row])) for row in np.argsort(places, kind="stable")]
    spare = length - sum(map(len, coded))
    if spare < 0:
        raise ConfigError(
            f"{len(records)} records do not fit into {length} tokens", hint="ask for longer ones"
        )
    cuts = [round(place * spare) for place in sorted(places)]
    start = int(rng.integers(0, len(text) - spare))
    found: list[int] = []
    before = 0
    for cut, record in zip(cuts, coded, strict=True):
        found += [*text[start + before : start + cut].tolist(), *record]
        before = cut
    return found + text[start + before : start + spare].tolist()
