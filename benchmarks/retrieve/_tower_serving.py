"""Students served beside an index of codes, and what was predicted of that."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._abstracts import Abstracts
from benchmarks.retrieve._tower_runs import MAX_TOKENS, Size, loaded, make_tower
from numpy.typing import NDArray

from steelyard.plan.retrieve.retriever_measured import encoder_speed, scan_trial
from steelyard.plan.retrieve.retriever_speed import time_calls
from steelyard.retrieve import IVFPQ
from steelyard.retrieve.towers import TowerEncoder

__all__ = ["serving_checks"]

_PARTS, _K = 16, 10
_COPIES = 40
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
    vectors = loaded(folder / names[0] / "documents").encode(papers.texts)
    tokens = float(np.mean([min(len(row), MAX_TOKENS[0]) for row in _tokens(papers)]))
    sizes = [(teacher, _parameters(teacher)), (student, names[2].parameters())]
    speed = encoder_speed(
        [_option(papers, size, tokens) for size in (Size(1, 32), Size(1, 96), Size(3, 128))],
        papers.asked,
        clock=_CLOCK,
    )
    asked = student.encode(papers.asked)
    trial = scan_trial(
        vectors, asked, nlist=64, parts=_PARTS, probes=(4, 16, 64), rerank=10, clock=_CLOCK
    )
    index = _large_index(vectors)
    scanned = 8 / index.nlist * len(index)
    scan_s, tail = trial.line.median_s(scanned), max(trial.line.tail, speed.tail)
    found = []
    for encoder, parameters in sizes:
        predicted = (speed.median_s(2 * parameters * tokens) + scan_s) * tail
        measured = _served(papers, encoder, index, rounds)
        found.append((predicted, measured))
    (slow, slow_measured), (fast, fast_measured) = found
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


def _large_index(vectors: NDArray[np.float32]) -> IVFPQ:
    """Return an index of many documents: the abstracts, and noisy copies of them."""
    rng = np.random.default_rng(0)
    index = IVFPQ(vectors.shape[1], nlist=256, parts=_PARTS, metric="ip", rerank=10, nprobe=8)
    index.train(vectors)
    index.add(vectors)
    for _ in range(_COPIES - 1):
        noisy = vectors + 0.1 * rng.normal(size=vectors.shape).astype(np.float32)
        index.add(noisy / np.linalg.norm(noisy, axis=1, keepdims=True))
    return index


def _served(papers: Abstracts, encoder: TowerEncoder, index: IVFPQ, rounds: int) -> float:
    """Return what 95 % of queries stay below, from text to hits."""

    def call(number: int) -> object:
        text = papers.asked[number % len(papers.asked)]
        return index.search(encoder.encode([text]), _K)

    return time_calls(call, rounds, 1.0, clock=_CLOCK).p95_s
