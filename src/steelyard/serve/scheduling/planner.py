"""Lays the sequences of a step out as flat index arrays."""

import numpy as np

from steelyard.serve.kv.transfer import Transfer
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
    decoding = [(request, at) for request, length in chunks[:num_decodes] for at in range(length)]
    prompts = chunks[num_decodes:]
    # In plain lists: for the few rows of most steps numpy's many calls take longer, each of whose
    # code has to come from memory after a step that read all weights.
    requests = [request for request, _ in decoding]
    positions = [request.num_computed + at for request, at in decoding]
    lengths, contexts = [1] * len(decoding), [position + 1 for position in positions]
    slots = [
        request.table.blocks[position // block_size] * block_size + position % block_size
        for request, position in zip(requests, positions, strict=True)
    ]
    for request, length in prompts:
        places = range(request.num_computed, request.num_computed + length)
        blocks = request.table.blocks
        requests.append(request)
        lengths.append(length)
        contexts.append(places.stop)
        positions += places
        slots += [blocks[at // block_size] * block_size + at % block_size for at in places]
    sampled, sample_rows = _sampled(prompts, len(decoding))
    return StepPlan(
        request_ids=[request.id for request in requests],
        num_decodes=len(decoding),
        token_ids=_token_ids(decoding, prompts),
        positions=_array(positions),
        slot_mapping=_array(slots),
        query_lengths=_array(lengths),
        context_lengths=_array(contexts),
        block_tables=_tables(requests, -(-max(contexts, default=0) // block_size)),
        sample_rows=_array([*range(len(decoding)), *sample_rows]),
        sampled=requests[: len(decoding)] + sampled,
        output_positions=_array(
            [
                len(request.output) + request.num_unknown + at
                for request, at in (*decoding, *((request, 0) for request in sampled))
            ]
        ),
        feedback=_feedback(requests[: len(decoding)]),
        copies=copies,
        transfers=transfers,
    )


def _array(numbers: list[int]) -> np.ndarray:
    """Return numbers as int64."""
    return np.array(numbers, dtype=np.int64)


def _tables(requests: list[Request], width: int) -> np.ndarray:
    """Stack block tables, int64 [S, width], rows padded with 0."""
    tables = np.zeros((len(requests), width), dtype=np.int64)
    for row, request in enumerate(requests):
        blocks = request.table.blocks
        tables[row, : len(blocks)] = blocks[:width]
    return tables


def _token_ids(decoding: list[tuple[Request, int]], chunks: list[Chunk]) -> np.ndarray:
    """Return the tokens to run, int64 [T]; 0 where a step in flight will yield them."""
    tokens = [
        request.drafts[at - 1] if at else 0 if request.num_unknown else request.output[-1]
        for request, at in decoding
    ]
    for request, length in chunks:
        tokens += request.tokens(request.num_computed, request.num_computed + length)
    return _array(tokens)


def _feedback(decoding: list[Request]) -> np.ndarray:
    """Say where the tokens come from that are not known yet, int64 [F, 2]."""
    pairs = [
        (row, request.output_index) for row, request in enumerate(decoding) if request.num_unknown
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


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
