"""Students served beside an index of codes, and what was predicted of that."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._abstracts import Abstracts
from benchmarks.retrieve._tower_runs import MAX_TOKENS, Size, loaded, make_tower, vectors_of
from numpy.typing import NDArray

from steelyard.plan.retrieve.retriever_measured import encoder_speed, pq_option, scan_trial
from steelyard.plan.retrieve.retriever_speed import joined_p95_s, time_calls
from steelyard.retrieve import IVFPQ
from steelyard.retrieve.towers import TowerEncoder

__all__ = ["serving_checks"]

_PARTS, _CELLS, _PROBES, _K = 16, 128, (2, 8, 32), 10
_SAMPLE = 8
"""Copies of the abstracts that are tried; five times as many are served."""
_CLOCK = time.thread_time
"""Seconds of this thread on the processor: others may share the machine."""


def serving_checks(
    papers: Abstracts, folder: Path, names: tuple[str, str, Size], *, rounds: int = 400
) -> list[Check]:
    """Predict how long queries take from other sizes of tower and index, then serve them.

    Args:
        papers: the papers.
        folder: folder of all jobs.
        names: jobs of the teacher and of the student, and the student's shape.
        rounds: queries that are timed.

    Returns:
        The checks.
    """
    teacher, student = (loaded(folder / name / "queries") for name in names[:2])
    vectors = vectors_of(folder / names[0] / "documents", papers.texts)
    tokens = float(np.mean([min(len(row), MAX_TOKENS[0]) for row in _tokens(papers)]))
    sizes = [(teacher, _parameters(teacher)), (student, names[2].parameters())]
    speed = encoder_speed(
        [_option(papers, size, tokens) for size in (Size(1, 32), Size(1, 96), Size(3, 128))],
        papers.asked,
        clock=_CLOCK,
    )
    asked = student.encode(papers.asked)
    copies = max(_SAMPLE, -(-2048 // len(vectors)))
    trial = scan_trial(
        _copied(vectors, copies), asked, nlist=_CELLS, parts=_PARTS, probes=_PROBES, clock=_CLOCK
    )
    whole = _copied(vectors, 5 * copies)
    index = IVFPQ(
        whole.shape[1], nlist=_CELLS, parts=_PARTS, metric="ip", rerank=10, nprobe=_PROBES[1]
    )
    index.train(whole)
    index.add(whole)
    option = pq_option(trial, _PROBES[1], len(whole), dim=whole.shape[1], parts=_PARTS)
    found = []
    for encoder, parameters in sizes:
        encode_s = speed.median_s(2 * parameters * tokens)
        predicted = joined_p95_s((encode_s, speed.tail), (option.median_s, option.tail))
        measured = _served(papers, encoder, index, rounds)
        found.append((predicted, measured))
    (slow, slow_measured), (fast, fast_measured) = found
    print(
        f"a text takes {speed.overhead_s * 1e3:.2f} ms and {1 / speed.s_per_work / 1e9:.1f} "
        f"GFLOP/s, p95 {speed.tail:.2f} of the median; a search {option.median_s * 1e3:.2f} ms, "
        f"{option.tail:.2f}"
    )
    # Between both: a deadline that the plan says the student keeps and the teacher does not.
    deadline = math.sqrt(slow * fast)
    print(
        f"95 % of queries, {len(index):,} codes, processor time: student {fast * 1e3:.2f} ms "
        f"predicted, {fast_measured * 1e3:.2f} measured; teacher {slow * 1e3:.2f}, "
        f"{slow_measured * 1e3:.2f}; deadline {deadline * 1e3:.2f} ms"
    )
    error = abs(fast_measured / fast - 1)
    kept = float(fast_measured <= deadline) + float(slow_measured > deadline)
    return [
        Check("5 p95 of student and index, error of its prediction", error, 0.15, "lower"),
        Check("5 student keeps the deadline, teacher does not", kept, 2.0, "higher"),
    ]


def _tokens(papers: Abstracts) -> list[list[int]]:
    """Return tokens of what is asked."""
    return [item.ids for item in papers.tokenizer.encode_batch(papers.asked)]


def _parameters(encoder: TowerEncoder) -> int:
    """Return parameters without the token table."""
    named = encoder.tower.named_parameters()
    return sum(part.numel() for name, part in named if name != "model.embedding.weight")


def _option(papers: Abstracts, size: Size, tokens: float) -> tuple[float, Callable[[str], object]]:
    """Return operations of a query, and an encoder of that size."""
    encoder = TowerEncoder(
        make_tower(papers, size, 7).eval(), papers.tokenizer, max_tokens=MAX_TOKENS[0]
    )
    return 2 * size.parameters() * tokens, lambda text: encoder.encode([text])


def _copied(vectors: NDArray[np.float32], copies: int) -> NDArray[np.float32]:
    """Return a larger collection: the vectors, and noisy copies of them."""
    rng = np.random.default_rng(0)
    parts = [vectors]
    for _ in range(copies - 1):
        noisy = vectors + 0.1 * rng.normal(size=vectors.shape).astype(np.float32)
        parts.append(noisy / np.linalg.norm(noisy, axis=1, keepdims=True))
    return np.concatenate(parts)


def _served(papers: Abstracts, encoder: TowerEncoder, index: IVFPQ, rounds: int) -> float:
    """Return what 95 % of queries stay below, from text to hits."""

    def call(number: int) -> object:
        text = papers.asked[number % len(papers.asked)]
        return index.search(encoder.encode([text]), _K)

    return time_calls(call, rounds, 1.0, clock=_CLOCK).p95_s
