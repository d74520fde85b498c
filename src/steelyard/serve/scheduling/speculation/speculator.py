"""Gives decoding sequences guessed tokens to check, and takes back what was guessed wrong."""

from dataclasses import dataclass

from steelyard.serve.scheduling.memory import KVMemory
from steelyard.serve.scheduling.planner import Chunk
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.speculation.control import AdaptiveDrafting, DraftControl
from steelyard.serve.scheduling.speculation.drafter import Drafter

__all__ = ["Speculator"]


@dataclass(slots=True)
class _Timing:
    """A step under way.

    Attributes:
        begin_s: when it was planned.
        rows: tokens of decoding sequences.
        is_plain: whether it does nothing else.
    """

    begin_s: float
    rows: int
    is_plain: bool


class Speculator:
    """Lets a step check guessed tokens of its decoding sequences.

    A guess runs as one more row of the step, behind the sequence's latest token, so each row is
    computed and sampled as if the tokens before it had come one by one. The engine's own draw of a
    row depends on the request's seed, the output position and the logits alone; a guess is right
    when it equals the draw before it. For a guess that is certain before the draw this is rejection
    sampling: it is accepted with the model's probability of it, and otherwise the draw is
    distributed as the residual. So outputs are the same tokens with and without guesses, whether
    likeliest or drawn.

    Attributes:
        drafter: guesses.
        control: decides how many guesses are checked.
        num_drafted: tokens that were checked.
        num_accepted: those that were right.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv
        2302.01318), algorithm 2, both with a distribution of guesses that has one token.
    """

    def __init__(self, drafter: Drafter, control: DraftControl | None = None) -> None:
        """Start with nothing learnt.

        Args:
            drafter: guesses.
            control: decides how many guesses are checked; by default as many as pay.
        """
        self.drafter = drafter
        self.control: DraftControl = control or AdaptiveDrafting()
        self.num_drafted = 0
        self.num_accepted = 0
        self._timing: _Timing | None = None

    def extend(self, chunks: list[Chunk], memory: KVMemory, *, is_awaited: bool) -> list[Chunk]:
        """Add guesses to decoding sequences, with slots for them.

        Args:
            chunks: decoding sequences, one token each; none of their tokens is unknown.
            memory: where slots come from.
            is_awaited: whether other requests wait for blocks, so that none is taken for guesses.

        Returns:
            The chunks, those with guesses longer by as many; the guesses stand in
            `Request.drafts`.
        """
        drafter = self.drafter
        requests = [request for request, _ in chunks]
        self.drafter.spent_s = 0.0
        if not requests or not self.control.looks():
            return chunks
        # Each sequence may need a block for its next token before these are given back.
        spare = 0 if is_awaited else max(memory.pool.num_available - len(requests), 0)
        room = memory.config.token_budget - len(requests)
        lengths = _cut(self._lengths(requests, memory, spare // len(requests)), room)
        if drafter.round_s:
            lengths = self._choose(requests, lengths)
            self._reserve(requests, lengths, memory)
        if not any(lengths):
            return chunks
        drafts = drafter.draft(requests, lengths)
        if not drafter.round_s:
            lengths = self._choose(requests, [len(tokens) for tokens in drafts])
            if not any(lengths):
                return chunks
            self._reserve(requests, lengths, memory)
        for request, tokens, length in zip(requests, drafts, lengths, strict=True):
            request.drafts = tokens[:length]
            if len(tokens) < length:  # a small model may have no guess yet
                request.table.shrink(memory.pool, request.num_computed + 1 + len(tokens))
        return [(request, 1 + len(request.drafts)) for request in requests]

    def begin(self, begin_s: float, rows: int, *, is_plain: bool) -> None:
        """Note a step that was planned.

        Args:
            begin_s: when planning began.
            rows: tokens of decoding sequences.
            is_plain: whether the step does nothing else.
        """
        self._timing = _Timing(begin_s, rows, is_plain)

    def end(self, now_s: float) -> None:
        """Learn from the time of the step that `begin` noted."""
        timing, self._timing = self._timing, None
        if timing and timing.is_plain and timing.rows:
            spent_s = self.drafter.spent_s
            self.control.timed(timing.rows, max(now_s - timing.begin_s - spent_s, 0.0), spent_s)

    def settle(self, request: Request, start: int, before: int, memory: KVMemory) -> int:
        """Learn what came of a request's guesses, and take back what they wrote in vain.

        Args:
            request: request with guesses, after the step's tokens were handed out.
            start: position of the first token that the step ran.
            before: output tokens that it had before.
            memory: where its slots are.

        Returns:
            Tokens that it got beyond the one that a step without guesses gives.
        """
        drafted = len(request.drafts)
        # Every row that counted gave a token; the one of an end token stands in no output.
        rows = len(request.output) - before + (request.finish_reason == "stop")
        accepted = max(rows - 1, 0)
        # Of a request that ended what was not reached is not known to be wrong.
        rejected = int(accepted < drafted and not request.finish_reason)
        self.control.checked(request, accepted, rejected)
        self.num_drafted += drafted
        self.num_accepted += accepted
        request.drafts = []
        # Rows behind an end token were not counted down.
        request.num_unknown = 0
        # The latest token is not computed, and neither are guesses that were wrong.
        request.num_computed = request.num_tokens - 1
        memory.remember(request, start, request.num_computed)
        memory.give_back(request)
        return max(len(request.output) - before - 1, 0)

    def _lengths(self, requests: list[Request], memory: KVMemory, share: int) -> list[int]:
        """Return the most guesses that each request has a use for, with `share` blocks more."""
        size = memory.config.block_size
        found = []
        for request in requests:
            if request.family is not None and request.family.is_beam:
                found.append(0)
                continue
            slots = (request.table.num_blocks + share) * size - request.num_computed - 1
            # The row of the last guess gives a token too.
            left = request.params.max_tokens - len(request.output) - 1
            found.append(max(min(slots, left, self.drafter.longest), 0))
        return found

    def _choose(self, requests: list[Request], lengths: list[int]) -> list[int]:
        """Let the control choose."""
        return self.control.choose(requests, lengths, len(requests), self.drafter.round_s)

    def _reserve(self, requests: list[Request], lengths: list[int], memory: KVMemory) -> None:
        """Find slots for guesses."""
        for request, length in zip(requests, lengths, strict=True):
            if length:
                request.table.grow(memory.pool, request.num_computed + 1 + length)


def _cut(lengths: list[int], room: int) -> list[int]:
    """Shorten lengths, the longest first, until their sum is at most `room`."""
    most = max(lengths, default=0)
    while most > 0 and sum(min(length, most) for length in lengths) > room:
        most -= 1
    return [min(length, most) for length in lengths]
