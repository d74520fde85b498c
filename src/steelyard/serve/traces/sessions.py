"""Conversations: turns whose prompts grow by what was said before."""

from collections.abc import Sequence

import numpy as np

from steelyard.errors import ConfigError
from steelyard.serve.traces.record import TraceRow
from steelyard.serve.traces.reshape import gamma_gaps

__all__ = ["make_sessions"]


def make_sessions(
    lengths: Sequence[TraceRow],
    generator: np.random.Generator,
    *,
    num_sessions: int,
    rate_per_s: float,
    mean_turns: float = 5.5,
    mean_think_s: float = 10.0,
    max_tokens: int = 4096,
) -> list[TraceRow]:
    """Build multi-turn conversations from single questions and answers.

    Sessions start by a Poisson process and have a geometric number of turns. The prompt of a turn
    is all that was said before and a new question; its arrival is that of the turn before plus an
    exponential pause, a bound from below, as the answer takes time too: a client that sends turns
    only after the answer uses `think_s`. A session ends early where prompt and answer would exceed
    `max_tokens`; a first turn that does so by itself is shortened.

    Args:
        lengths: rows whose question and answer lengths are drawn from.
        generator: source of randomness.
        num_sessions: conversations, at least 1.
        rate_per_s: new conversations per second.
        mean_turns: mean turns of a conversation, at least 1.
        mean_think_s: mean pause of the sender, at least 0.
        max_tokens: most tokens of prompt and answer, at least 2.

    Returns:
        Turns of all sessions by arrival.

    Raises:
        ConfigError: an argument is out of range, or there are no lengths to draw from.

    Source: FastSwitch (arXiv 2411.18424), section 4: ShareGPT conversations of 5.5 turns in the
        mean.
    """
    if not lengths or num_sessions < 1 or mean_turns < 1 or mean_think_s < 0 or max_tokens < 2:
        raise ConfigError(
            f"cannot build {num_sessions} sessions of {mean_turns} turns from {len(lengths)} "
            f"lengths",
            hint="num_sessions and mean_turns are at least 1, mean_think_s at least 0, max_tokens "
            "at least 2, and lengths not empty",
        )
    starts = np.cumsum(gamma_gaps(generator, num_sessions, rate_per_s=rate_per_s))
    turns = generator.geometric(1.0 / mean_turns, num_sessions)
    rows: list[TraceRow] = []
    for number, (start_s, count) in enumerate(zip(starts - starts[0], turns, strict=True)):
        picks = [lengths[index] for index in generator.integers(0, len(lengths), count)]
        pauses = generator.exponential(mean_think_s, count) if mean_think_s else np.zeros(count)
        rows += _turns(f"session-{number}", float(start_s), picks, pauses, max_tokens)
    return sorted(rows, key=lambda row: row.arrival_s)


def _turns(
    session: str, start_s: float, picks: list[TraceRow], pauses: np.ndarray, max_tokens: int
) -> list[TraceRow]:
    """Return the turns of one session, the history growing with each."""
    rows: list[TraceRow] = []
    history = 0
    at_s = start_s
    for pick, pause in zip(picks, pauses, strict=True):
        asked = history + pick.input_tokens
        answered = pick.output_tokens
        if asked + answered > max_tokens:
            if rows:
                break
            answered = min(answered, max_tokens // 2)
            asked = min(asked, max_tokens - answered)
        think_s = float(pause) if rows else 0.0
        at_s += think_s
        rows.append(
            TraceRow(
                arrival_s=at_s,
                input_tokens=asked,
                output_tokens=answered,
                client=pick.client,
                session=session,
                think_s=think_s,
            )
        )
        history = asked + answered
    return rows
