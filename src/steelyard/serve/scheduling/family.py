"""Sequences that run side by side for one request: parallel samples or beams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steelyard.serve.scheduling.request import Request

__all__ = ["Family"]


@dataclass(kw_only=True, slots=True, eq=False)
class Family:
    """The sequences of one request; they are admitted, preempted and swapped together.

    Attributes:
        root: the request as it was asked; it runs the prompt and is the first member.
        members: all sequences, the root first; only the root before the prompt is computed.
    """

    root: Request
    members: list[Request] = field(default_factory=list)
