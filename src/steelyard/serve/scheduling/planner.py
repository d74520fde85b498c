"""Lays the sequences of a step out as flat index arrays."""

import numpy as np

from steelyard.data.tiers.transfers import Transfer
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan

__all__ = ["Chunk", "lay_out"]

Chunk = tuple["Request", int]
"""A sequence and how many tokens of it run: of those pending, or while decoding its latest one and
guesses."""


def lay_out(
    chunks: list[Chunk],
    num_decodes: int,
    block_size: int,
    copies: np.ndarray,
    transfers: list[Transfer],
) -> StepPlan:
    """Turn chunks into a plan.

    Args:
        chunks: decoding sequences first; every token has its slot. None for a step that only moves
            blocks. Each guess of a decoding sequence becomes a row of its own, as if it were
            another sequence with the same blocks: keys and values are stored before any row
            attends, so a row's result is the one it has without guesses.
        num_decodes: how many decode.
        block_size: slots per block.
        copies: blocks to copy first, int64 [C, 2].
        transfers: copies between the tiers to start before the step.

    Returns:
        The plan; its arrays are its own.
    """
    # In plain lists: for the few rows of most steps numpy's many calls take longer, as their code
    # has to come from memory after a step that read all weights.
    positions, slots = _places(chunks, block_size)
    requests: list[Request] = []
    tokens: list[int] = []
    outputs: list[int] = []
    feedback: list[tuple[int, int]] = []
    for request, length in chunks[:num_decodes]:
        unknown = request.num_unknown
        before = len(request.output) + unknown
        if unknown:  # the step in flight will yield the token
            feedback.append((len(requests), request.output_index))
        requests += [request] * length
        tokens += [0 if unknown else request.output[-1], *request.drafts[: length - 1]]
        outputs += range(before, before + length)
    decodes, prompts = len(requests), chunks[num_decodes:]
    lengths, contexts = [1] * decodes, [place + 1 for place in positions[:decodes]]
    for request, length in prompts:
        stop = request.num_computed + length
        requests.append(request)
        lengths.append(length)
        contexts.append(stop)
        tokens += request.tokens(request.num_computed, stop)
    sampled, sample_rows = _sampled(prompts, decodes)
    outputs += [len(request.output) + request.num_unknown for request in sampled]
    return StepPlan(
        request_ids=[request.id for request in requests],
        num_decodes=decodes,
        token_ids=_array(tokens),
        positions=_array(positions),
        slot_mapping=_array(slots),
        query_lengths=_array(lengths),
        context_lengths=_array(contexts),
        block_tables=_tables(requests, -(-max(contexts, default=0) // block_size)),
        sample_rows=_array([*range(decodes), *sample_rows]),
        sampled=requests[:decodes] + sampled,
        output_positions=_array(outputs),
        feedback=np.array(feedback, dtype=np.int64).reshape(-1, 2),
        copies=copies,
        transfers=transfers,
    )


def _array(numbers: list[int]) -> np.ndarray:
    """Return numbers as int64."""
    return np.array(numbers, dtype=np.int64)


def _places(chunks: list[Chunk], block_size: int) -> tuple[list[int], list[int]]:
    """Return the position of each token in its sequence, and its slot."""
    positions: list[int] = []
    slots: list[int] = []
    for request, length in chunks:
        blocks, start = request.table.blocks, request.num_computed
        places = range(start, start + length)
        positions += places
        slots += [blocks[at // block_size] * block_size + at % block_size for at in places]
    return positions, slots


def _tables(requests: list[Request], width: int) -> np.ndarray:
    """Stack block tables, int64 [S, width], rows padded with 0."""
    tables = np.zeros((len(requests), width), dtype=np.int64)
    for row, request in enumerate(requests):
        blocks = request.table.blocks
        tables[row, : len(blocks)] = blocks[:width]
    return tables


def _sampled(chunks: list[Chunk], end: int) -> tuple[list[Request], list[int]]:
    """Return the requests that get a token by prompt chunks behind a row, and the row of each."""
    sampled: list[Request] = []
    rows: list[int] = []
    for request, length in chunks:
        end += length
        if length != request.num_pending:
            continue
        # The step that completes a family's prompt yields the first token of every member from one
        # row.
        family = request.family
        members = [request] if family is None or family.has_forked else family.sampled
        sampled += members
        rows += [end - 1] * len(members)
    return sampled, rows
