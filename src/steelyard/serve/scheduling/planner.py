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
    requests = [request for request, _ in (*decoding, *chunks[num_decodes:])]
    pieces = [1] * len(decoding) + [length for _, length in chunks[num_decodes:]]
    lengths = np.array(pieces, dtype=np.int64)
    starts = np.array([request.num_computed for request in requests], dtype=np.int64)
    starts[: len(decoding)] += np.array([at for _, at in decoding], dtype=np.int64)
    contexts = starts + lengths
    ends = np.cumsum(lengths)
    rows = np.repeat(np.arange(len(requests)), lengths)
    positions = np.arange(len(rows)) + np.repeat(starts - ends + lengths, lengths)
    tables = _tables(requests, int(-(-contexts.max(initial=0) // block_size)))
    sampled, sample_rows = _sampled(chunks[num_decodes:], ends[len(decoding) :].tolist())
    return StepPlan(
        request_ids=[request.id for request in requests],
        num_decodes=len(decoding),
        token_ids=_token_ids(decoding, chunks[num_decodes:]),
        positions=positions,
        slot_mapping=tables[rows, positions // block_size] * block_size + positions % block_size,
        query_lengths=lengths,
        context_lengths=contexts,
        block_tables=tables,
        sample_rows=np.array([*range(len(decoding)), *sample_rows], dtype=np.int64),
        sampled=requests[: len(decoding)] + sampled,
        output_positions=np.array(
            [
                len(request.output) + request.num_unknown + at
                for request, at in (*decoding, *((request, 0) for request in sampled))
            ],
            dtype=np.int64,
        ),
        feedback=_feedback(requests[: len(decoding)]),
        copies=copies,
        transfers=transfers,
    )


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
    return np.array(tokens, dtype=np.int64)


def _feedback(decoding: list[Request]) -> np.ndarray:
    """Say where the tokens come from that are not known yet, int64 [F, 2]."""
    pairs = [
        (row, request.output_index) for row, request in enumerate(decoding) if request.num_unknown
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _sampled(chunks: list[Chunk], ends: list[int]) -> tuple[list[Request], list[int]]:
    """Return the requests that get a token by prompt chunks, and the row of each."""
    sampled: list[Request] = []
    rows: list[int] = []
    for (request, length), end in zip(chunks, ends, strict=True):
        if length != request.num_pending:
            continue
        # The step that completes a family's prompt yields the first token of every member from one
        # row.
        family = request.family
        members = [request] if family is None or family.has_forked else family.sampled
        sampled += members
        rows += [end - 1] * len(members)
    return sampled, rows
