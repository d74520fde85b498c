"""Conversations as a closed load: each question comes a while after the last answer."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.traces import TraceRow, make_sessions, scale_lengths

__all__ = ["Conversation", "ConversationLoad", "Turn", "make_conversations"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One question and the length of its answer.

    Attributes:
        question: token ids, at least one.
        output_tokens: tokens to generate, whatever they are.
        think_s: pause between the answer before and this question, 0 for the first.
    """

    question: list[int]
    output_tokens: int
    think_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """Turns of one sender.

    Attributes:
        name: unique name.
        client: payer.
        start_s: time of the first question.
        turns: questions and answers, at least one.
    """

    name: str
    client: str
    start_s: float
    turns: list[Turn]


def make_conversations(
    lengths: Sequence[TraceRow],
    generator: np.random.Generator,
    *,
    num_conversations: int,
    rate_per_s: float,
    vocab_size: int,
    length_scale: float = 1.0,
    mean_turns: float = 5.5,
    mean_think_s: float = 10.0,
    max_tokens: int = 4096,
) -> list[Conversation]:
    """Draw conversations with random words.

    Args:
        lengths: rows whose question and answer lengths are drawn from, such as those of ShareGPT.
        generator: source of randomness; equal seeds yield equal conversations.
        num_conversations: conversations to draw, at least 1.
        rate_per_s: new conversations per second, a Poisson process.
        vocab_size: tokens are uniform in [0, vocab_size).
        length_scale: factor on all lengths, such as 1/8 for a small model.
        mean_turns: mean of the geometric distribution of turns, at least 1.
        mean_think_s: mean pause before a further question, exponential.
        max_tokens: most tokens of a conversation; it ends before.

    Returns:
        Conversations by start.

    Raises:
        ConfigError: an argument is out of range.

    Source: Shen et al. 2024 (arXiv 2411.18424), evaluation: ShareGPT conversations of 5.5 turns in
        the mean.
    """
    scaled = list(scale_lengths(lengths, length_scale))
    limits = {"mean_turns": mean_turns, "mean_think_s": mean_think_s, "max_tokens": max_tokens}
    rows = make_sessions(
        scaled, generator, num_sessions=num_conversations, rate_per_s=rate_per_s, **limits
    )
    sessions: dict[str, list[TraceRow]] = {}
    for row in rows:
        sessions.setdefault(row.session, []).append(row)
    return [_conversation(name, turns, generator, vocab_size) for name, turns in sessions.items()]


def _conversation(
    name: str, rows: list[TraceRow], generator: np.random.Generator, vocab_size: int
) -> Conversation:
    """Draw the words of one session's turns."""
    turns: list[Turn] = []
    history = 0
    for row in rows:
        question = generator.integers(0, vocab_size, max(row.input_tokens - history, 1)).tolist()
        turns.append(Turn(question=question, output_tokens=row.output_tokens, think_s=row.think_s))
        history = row.input_tokens + row.output_tokens
    return Conversation(name=name, client=rows[0].client, start_s=rows[0].arrival_s, turns=turns)


class ConversationLoad:
    """Sends each turn of conversations when it is due: a pause after the answer before it.

    It has no clock of its own: the driver asks what is due and reports answers.

    Attributes:
        unanswered: turns sent and not answered.
    """

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        """Start at time 0.

        Args:
            conversations: conversations of unique names.
        """
        self.unanswered = 0
        self._due: list[tuple[float, int, int, list[int]]] = []
        self._conversations = list(conversations)
        for row, item in enumerate(self._conversations):
            heapq.heappush(self._due, (item.start_s, row, 0, []))

    @property
    def next_s(self) -> float:
        """When the next question comes, infinity when none does before another answer."""
        return self._due[0][0] if self._due else math.inf

    @property
    def is_done(self) -> bool:
        """Whether every turn was answered."""
        return not self._due and not self.unanswered

    def due(self, now_s: float) -> list[Request]:
        """Return the requests that came until now, each once, with forced output lengths.

        Args:
            now_s: seconds since the load began.

        Returns:
            Requests by arrival, named after the row of their conversation and the turn, such as
            "3/0".
        """
        requests = []
        while self._due and self._due[0][0] <= now_s:
            arrival_s, row, index, history = heapq.heappop(self._due)
            item = self._conversations[row]
            turn = item.turns[index]
            params = SamplingParams(max_tokens=turn.output_tokens, ignore_end=True)
            prompt = [*history, *turn.question]
            requests.append(
                Request(
                    id=f"{row}/{index}",
                    prompt=prompt,
                    params=params,
                    arrival_s=arrival_s,
                    client=item.client,
                )
            )
        self.unanswered += len(requests)
        return requests

    def answered(self, request: Request, now_s: float) -> None:
        """Take an answer; the next question of its conversation comes after a pause.

        Args:
            request: request of `due`, finished.
            now_s: when its last token came.
        """
        self.unanswered -= 1
        row, index = (int(part) for part in request.id.split("/"))
        turns = self._conversations[row].turns
        if index + 1 < len(turns):
            heapq.heappush(
                self._due,
                (
                    now_s + turns[index + 1].think_s,
                    row,
                    index + 1,
                    [*request.prompt, *request.output],
                ),
            )
