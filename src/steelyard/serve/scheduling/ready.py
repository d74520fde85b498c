"""Which sequences of a running request may do what in the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steelyard.serve.scheduling.request import Request

__all__ = ["decodable", "num_prefill", "width"]


def width(request: Request) -> int:
    """Count the sequences that a request may run side by side."""
    return request.params.num_sequences if request.family else 1


def decodable(request: Request) -> list[Request]:
    """Return the sequences of a running request that may decode now.

    A sequence may run ahead of the token that a step in flight gives it, unless its next token
    depends on that one in other ways than through the model, or that one may be its last. Beams go
    together or not at all.
    """
    family = request.family
    if family is None:
        return [request] if _may_decode(request, request.is_synchronous) else []
    ready = [
        item
        for item in family.living
        if family.may_run(item) and _may_decode(item, item.is_synchronous or not family.has_forked)
    ]
    return [] if family.is_beam and len(ready) < len(family.living) else ready


def _may_decode(item: Request, waits: bool) -> bool:
    """Whether a sequence has one pending token of its output and is not to wait for it."""
    known = len(item.output)
    unknown = item.num_unknown
    if len(item.prompt) + known + unknown - item.num_computed != 1 or known + unknown == 0:
        return False
    return unknown == 0 or not (waits or known + unknown >= item.params.max_tokens)


def num_prefill(item: Request) -> int:
    """Count the tokens of a sequence that may run as a prompt chunk now."""
    pending = item.num_pending
    if item.num_unknown or (pending == 1 and item.output):
        return 0
    family = item.family
    if family is None:
        return pending
    if not family.may_run(item):
        return 0
    # The last token of a beam runs as a decode, in one step with those of the other beams, as the
    # search compares the candidates of all of them.
    return pending - 1 if family.is_beam and family.has_forked else pending
