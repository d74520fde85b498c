"""A request for tokens, what was asked and how far it is; and the sequences that run for one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from steelyard.serve.kv.blocks import BlockTable
from steelyard.serve.kv.prefix import chain_hash
from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["Family", "Hypothesis", "Request", "RequestState"]

RequestState = Literal["waiting", "running", "swapping_out", "swapped", "swapping_in"]


@dataclass(kw_only=True, slots=True, eq=False)
class Request:
    """One sequence on its way through the engine; the scheduler owns its state.

    Attributes:
        id: name, unique among the requests in flight.
        prompt: token ids, at least one.
        params: sampling parameters.
        arrival_s: when it came, on the driver's clock.
        priority: smaller runs first under the priority policy.
        client: payer, whom fair policies charge.
        user: person on whose behalf the payer asks; it divides only the payer's share.
        expected_output: output tokens its sender or a predictor expects, 0 when unknown.
        order: rank of arrival, set by the scheduler; preemption does not change it.
        output: generated token ids.
        num_computed: leading tokens whose keys and values are in the pool.
        num_cached: prompt tokens taken from the prefix index when last admitted.
        num_preemptions: how often its blocks were taken away.
        table: blocks that hold its keys and values.
        block_hashes: chain hashes of its leading full blocks, as far as known.
        first_token_s: time of the first output token, NaN before.
        last_token_s: time of the latest output token, NaN before.
        finish_reason: "stop", "length", "abort" or "refused" once it ended.
        error: why it was refused in the middle, else "".
        state: place of its keys and values.
        family: the sequences that run side by side for one request, itself among them; None when it
            runs alone.
        index: position among the members of its family.
        logprobs: natural logarithm of each output token's probability; empty when not asked for.
        top_logprobs: (token, log probability) pairs of the likeliest alternatives of each output
            token; empty when not asked for.
        cumulative_logprob: sum of the log probabilities of the output, as far as they are known.
        num_unknown: output tokens that a step in flight will yield.
        output_index: row of the latest of them in that step's output.
        steps_in_flight: planned steps that write its keys and values and are not completed.
        is_synchronous: whether its next token may only be planned when all before it are known.
        num_charged: leading prompt tokens that were computed at least once.
        drafts: guessed tokens that the step in flight checks, behind the latest of the output.
    """

    id: str
    prompt: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival_s: float = 0.0
    priority: int = 0
    client: str = "default"
    user: str = ""
    expected_output: int = 0
    order: int = -1
    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    table: BlockTable = field(default_factory=BlockTable)
    block_hashes: list[bytes] = field(default_factory=list)
    first_token_s: float = float("nan")
    last_token_s: float = float("nan")
    finish_reason: Literal["stop", "length", "abort", "refused"] | None = None
    error: str = ""
    state: RequestState = "waiting"
    family: Family | None = None
    index: int = 0
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    num_unknown: int = 0
    output_index: int = -1
    steps_in_flight: int = 0
    is_synchronous: bool = False
    num_charged: int = 0
    drafts: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far, those of a step in flight among them."""
        return len(self.prompt) + len(self.output) + self.num_unknown

    @property
    def num_pending(self) -> int:
        """Tokens not yet run through the model; 1 while decoding."""
        return len(self.prompt) + len(self.output) + self.num_unknown - self.num_computed

    @property
    def sequences(self) -> list[Request]:
        """Sequences of this request that run now: itself, or the living members of its family."""
        return self.family.living if self.family else [self]

    @property
    def members(self) -> list[Request]:
        """All sequences of this request, those that ended among them."""
        return self.family.members if self.family else [self]

    @property
    def root(self) -> Request:
        """The request that was asked."""
        return self.family.root if self.family else self

    @property
    def width(self) -> int:
        """Sequences that it may run side by side."""
        return self.params.num_sequences if self.family else 1

    @property
    def num_prefill(self) -> int:
        """Tokens of the sequence that may run as a prompt chunk now."""
        pending = self.num_pending
        if self.num_unknown or (pending == 1 and self.output):
            return 0
        family = self.family
        if family is None:
            return pending
        if not family.may_run(self):
            return 0
        # The last token of a beam runs as a decode, in one step with those of the other beams, as
        # the search compares the candidates of all of them.
        return pending - 1 if family.is_beam and family.has_forked else pending

    @property
    def expected_tokens(self) -> int:
        """Prompt and output tokens at the end, as far as one can tell."""
        limit = self.params.max_tokens
        return len(self.prompt) + (
            limit if self.params.ignore_end else min(self.expected_output or limit, limit)
        )

    def decodable(self) -> list[Request]:
        """Return the sequences of this running request that may decode now.

        A sequence may run ahead of the token that a step in flight gives it, unless its next token
        depends on that one in other ways than through the model, or that one may be its last. Beams
        go together or not at all.
        """
        family = self.family
        if family is None:
            return [self] if self._may_decode(self.is_synchronous) else []
        ready = [
            item
            for item in family.living
            if family.may_run(item)
            and item._may_decode(item.is_synchronous or not family.has_forked)
        ]
        return [] if family.is_beam and len(ready) < len(family.living) else ready

    def _may_decode(self, waits: bool) -> bool:
        """Whether the sequence has one pending token of its output and is not to wait for it."""
        known = len(self.output)
        unknown = self.num_unknown
        if len(self.prompt) + known + unknown - self.num_computed != 1 or known + unknown == 0:
            return False
        return unknown == 0 or not (waits or known + unknown >= self.params.max_tokens)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Return prompt and output tokens at positions [start, stop)."""
        size = len(self.prompt)
        if stop <= size:
            return self.prompt[start:stop]
        return self.prompt[start:size] + self.output[max(start - size, 0) : stop - size]

    def leading(self, length: int) -> list[int]:
        """Return the first `length` output tokens, guessed ones where no others are known."""
        size = len(self.output)
        return self.output[:length] + self.drafts[: max(length - size, 0)]

    def hash_blocks(self, root: bytes, block_size: int, count: int) -> list[bytes]:
        """Hash the leading full blocks, as far as not yet done.

        Args:
            root: start of the chain, equal for all requests that may share blocks.
            block_size: tokens per block.
            count: blocks, all of them filled with known tokens.

        Returns:
            Chain hashes of the leading `count` blocks.
        """
        known = self.block_hashes
        while len(known) < count:
            start = len(known) * block_size
            tokens = self.tokens(start, start + block_size)
            known.append(chain_hash(known[-1] if known else root, tokens))
        return known[:count]

    def take(
        self,
        token: int,
        now_s: float,
        logprob: float | None = None,
        top: list[tuple[int, float]] | None = None,
    ) -> None:
        """Append a sampled token and decide whether the request has ended.

        Args:
            token: token id.
            now_s: time at the step's end.
            logprob: log probability of the token, where the request asks for it.
            top: (token, log probability) of the likeliest alternatives, where the request asks for
                it.
        """
        # The end token is not part of the output, so it neither counts nor is reported.
        if (
            not self.params.ignore_end
            and token in self.params.stop_tokens
            and len(self.output) >= self.params.min_tokens
        ):
            self.finish_reason = "stop"
            if not self.output:
                self.first_token_s = now_s
            self.last_token_s = now_s
            return
        self.add(token, now_s, logprob)
        if top is not None:
            self.top_logprobs.append(top)
        if len(self.output) >= self.params.max_tokens:
            self.finish_reason = "length"

    def add(self, token: int, now_s: float, logprob: float | None = None) -> None:
        """Append a token, whatever it is."""
        self.output.append(token)
        if len(self.output) == 1:
            self.first_token_s = now_s
        self.last_token_s = now_s
        if logprob is not None:
            self.logprobs.append(logprob)
            self.cumulative_logprob += logprob


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """A finished beam of a search.

    Attributes:
        tokens: output token ids, without the end token.
        logprobs: log probability of each.
        cumulative_logprob: log probability of the output and its end token.
        score: cumulative log probability over the number of tokens, with the end token, to the
            power of the length penalty.
        finish_reason: "stop" or "length".
    """

    tokens: list[int]
    logprobs: list[float]
    cumulative_logprob: float
    score: float
    finish_reason: str


@dataclass(kw_only=True, slots=True, eq=False)
class Family:
    """The sequences of one request; they are admitted and preempted together.

    The root runs the prompt. The step that completes it gives every member its first token; from
    then on the members' tables share the prompt's blocks and grow apart by copy-on-write.

    Attributes:
        root: the request as it was asked, the first member.
        members: all sequences by index.
        living: members that run now; only the root while the prompt is computed.
        reports: whether log probabilities were asked for.
        has_forked: whether the prompt was completed once.
        shared_tokens: leading tokens that the first living member computes for the others after an
            admission.
        leader: the member that does.
        hypotheses: finished beams.
    """

    root: Request
    members: list[Request]
    living: list[Request]
    leader: Request
    reports: bool
    has_forked: bool = False
    shared_tokens: int = 0
    hypotheses: list[Hypothesis] = field(default_factory=list)

    @classmethod
    def of(cls, root: Request) -> Family:
        """Make the members of a request for several sequences; the root becomes the first.

        Seeds count up from the root's. Where outputs are ranked, log probabilities are asked for.
        """
        params = root.params
        # Ranking needs log probabilities whether or not the caller asked for them.
        ranked = params.best_of > params.n and params.logprobs is None
        members = [root]
        for index in range(1, params.num_sequences):
            own = replace(
                params,
                seed=(params.seed + index) % 2**63,
                logprobs=0 if ranked else params.logprobs,
            )
            members.append(
                Request(
                    id=f"{root.id}#{index}",
                    prompt=root.prompt,
                    params=own,
                    arrival_s=root.arrival_s,
                    client=root.client,
                    user=root.user,
                )
            )
        if ranked:
            root.params = replace(params, logprobs=0)
        family = cls(
            root=root,
            members=members,
            living=[root],
            leader=root,
            reports=params.logprobs is not None,
        )
        for index, member in enumerate(members):
            member.family, member.index = family, index
            member.is_synchronous = params.needs_history
        return family

    @property
    def is_beam(self) -> bool:
        """Whether the members are beams of one search."""
        return self.root.params.beam_width > 0

    @property
    def is_ranked(self) -> bool:
        """Whether the outputs are only known when all members ended."""
        return self.is_beam or self.root.params.best_of > self.root.params.n

    @property
    def sampled(self) -> list[Request]:
        """Members that get a token when the prompt is completed."""
        return [self.root] if self.is_beam else self.members

    def may_run(self, member: Request) -> bool:
        """Whether the blocks that a member shares with the leader are computed or planned."""
        return member is self.leader or self.leader.num_computed >= self.shared_tokens

    def outputs(self) -> list[Request]:
        """Return the members that the caller gets: the best first if ranked, else by index."""
        params = self.root.params
        if params.best_of <= params.n:
            return self.members
        score = {
            member.id: member.cumulative_logprob / max(len(member.output), 1)
            for member in self.members
        }
        return sorted(self.members, key=lambda member: -score[member.id])[: params.n]
