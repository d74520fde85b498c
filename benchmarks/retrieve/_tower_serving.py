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

from steelyard.plan.retrieve.retriever_measured import (
    encoder_speed,
    pq_option,
    scan_trial,
    trial_index,
)
from steelyard.plan.retrieve.retriever_speed import joined_p95_s, time_calls
from steelyard.retrieve.towers import TowerEncoder

__all__ = ["serving_checks"]

_PARTS, _CELLS, _PROBES, _K = 16, 128, (2, 8, 32), 10
_SAMPLE = 8
"""Copies of the abstracts that are tried; five times as many are served."""
_TIMED = 60
"""Queries that are asked in turn."""
_SIZES = (Size(1, 32), Size(1, 96), Size(3, 128))
"""Towers that are timed; none of them serves."""
_CLOCK = time.thread_time
"""Seconds of this thread on the processor: others may share the machine."""


def serving_checks(
    papers: Abstracts, folder: Path, names: tuple[str, str, Size], *, rounds: int
) -> list[Check]:
    """Predict how long queries take from other sizes of tower and index, then serve them.

    Both are done in turn, as the machine may be slower at one time than at another.

    Args:
        papers: the papers.
        folder: folder of all jobs.
        names: jobs of the teacher and of the student, and the student's shape.
        rounds: predictions, each followed by service.

    Returns:
        The checks.
    """
    teacher, student = (loaded(folder / name / "queries") for name in names[:2])
    sizes = {"teacher": (teacher, _parameters(teacher)), "student": (student, _parameters(student))}
    vectors = vectors_of(folder / names[0] / "documents", papers.texts)
    copies = max(_SAMPLE, -(-2048 // len(vectors)))
    serving = _Serving(papers, student, _copied(vectors, copies), _copied(vectors, 5 * copies))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sizes}
    for _ in range(rounds):
        for name, (encoder, parameters) in sizes.items():
            found[name].append((serving.predicted_s(parameters), serving.served_s(encoder)))
    medians = {name: np.median(np.array(pairs), axis=0) for name, pairs in found.items()}
    (slow, slow_measured), (fast, fast_measured) = medians["teacher"], medians["student"]
    # Between both: a deadline that the plan says the student keeps and the teacher does not.
    deadline = math.sqrt(slow * fast)
    print(
        f"95 % of queries, {5 * copies * len(vectors):,} codes, processor time: student "
        f"{fast * 1e3:.2f} ms predicted, {fast_measured * 1e3:.2f} measured; teacher "
        f"{slow * 1e3:.2f}, {slow_measured * 1e3:.2f}; deadline {deadline * 1e3:.2f} ms"
    )
    ratios = [measured / predicted for predicted, measured in found["student"]]
    error = abs(float(np.median(ratios)) - 1)
    kept = float(fast_measured <= deadline) + float(slow_measured > deadline)
    return [
        Check("5 p95 of student and index, error of its prediction", error, 0.15, "lower"),
        Check("5 student keeps the deadline, teacher does not", kept, 2.0, "higher"),
    ]


class _Serving:
    """What predicts and what serves: towers of other sizes beside a small index, and the large."""

    def __init__(
        self,
        papers: Abstracts,
        student: TowerEncoder,
        small: NDArray[np.float32],
        large: NDArray[np.float32],
    ) -> None:
        """Build both indexes and the towers that are timed."""
        self._texts = papers.asked[:_TIMED]
        rows = papers.tokenizer.encode_batch(self._texts)
        self._tokens = float(np.mean([min(len(row.ids), MAX_TOKENS[0]) for row in rows]))
        self._asked = student.encode(self._texts)
        self._options = [_option(papers, size, self._tokens) for size in _SIZES]
        self._small, self._rows = trial_index(small, nlist=_CELLS, parts=_PARTS), small
        self._large = trial_index(large, nlist=_CELLS, parts=_PARTS)
        self._large.nprobe = _PROBES[1]
        # One call of each compiles what is compiled.
        self.served_s(student, count=5)

    def predicted_s(self, parameters: int) -> float:
        """Return what 95 % of queries will stay below, by a tower of so many parameters."""
        query, encode = self._asked[:1], self._options[1][1]
        speed = encoder_speed(
            self._options,
            self._texts,
            clock=_CLOCK,
            between=lambda: self._large.search(query, _K),
        )
        trial = scan_trial(
            self._small,
            self._rows,
            self._asked,
            probes=_PROBES,
            clock=_CLOCK,
            between=lambda: encode(self._texts[0]),
        )
        dim = self._rows.shape[1]
        option = pq_option(trial, _PROBES[1], len(self._large), dim=dim, parts=_PARTS)
        encode_s = speed.median_s(2 * parameters * self._tokens)
        return joined_p95_s((encode_s, speed.tail), (option.median_s, option.tail))

    def served_s(self, encoder: TowerEncoder, count: int = 200) -> float:
        """Return what 95 % of queries stay below, from text to hits."""

        def call(number: int) -> object:
            text = self._texts[number % len(self._texts)]
            return self._large.search(encoder.encode([text]), _K)

        return time_calls(call, count, 1.0, clock=_CLOCK).p95_s


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
