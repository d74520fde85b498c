"""Sequences that run side by side for one request: parallel samples or beams."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from steelyard.serve.scheduling.request import Request

if TYPE_CHECKING:
    from steelyard.serve.scheduling.families.beam import Hypothesis

__all__ = ["Family"]


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
