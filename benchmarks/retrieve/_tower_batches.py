"""Batches of growing size in constant memory, each in a process of its own."""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from benchmarks.common import Check
from benchmarks.retrieve._abstracts import Abstracts, quality
from benchmarks.retrieve._tower_runs import (
    MAX_TOKENS,
    TEMPERATURE,
    PairJob,
    Size,
    Trained,
    make_tower,
    run_job,
    vectors_of,
)

from steelyard.nn.towers import TowerPair
from steelyard.retrieve.towers import TextPairs, TowerEncoder
from steelyard.train.contrastive import ContrastiveLoss

__all__ = ["batch_checks"]

_SIZE = Size(1, 48)
_CHUNK = 32


def batch_checks(
    batches: Sequence[int], steps: int, papers: Abstracts, folder: Path
) -> list[Check]:
    """Train the same towers with each size of batch, and compare memory, gradients and quality.

    Args:
        batches: sizes, ascending.
        steps: steps with each.
        papers: the papers.
        folder: folder of the runs.

    Returns:
        The checks.
    """
    peaks, found = [], []
    for batch in batches:
        job = PairJob(
            name=f"batch-{batch}",
            folder=folder,
            papers=papers,
            queries=_SIZE,
            documents=_SIZE,
            steps=steps,
            batch=batch,
            chunk=_CHUNK,
            clozes=max(2000, batches[-1]),
        )
        # A worker that did other jobs before would show their peak.
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            done: Trained = alone.apply(run_job, (job,))
        peaks.append(done.peak_bytes)
        asked = vectors_of(folder / job.name / "queries", papers.asked)
        documents = vectors_of(folder / job.name / "documents", papers.texts)
        found.append(quality(papers, asked, documents).ndcg)
        print(f"batch {batch:5,}: nDCG@10 {found[-1]:.3f}, peak {peaks[-1] / 1e6:,.0f} MB")
    falls = float((np.diff(found) <= 0).sum())
    return [
        Check("4 peak memory, largest batch over smallest", peaks[-1] / peaks[0], 1.15, "lower"),
        Check("4 larger batches without a gain", falls, 0.0, "lower"),
        Check("4 gradients of chunks, largest error", _gradient_error(papers), 1e-5, "lower"),
    ]


def _gradient_error(papers: Abstracts) -> float:
    """Return how far gradients in chunks are from those of a whole batch, over the largest."""
    pairs = papers.labelled()
    pair = TowerPair(make_tower(papers, _SIZE, 0), make_tower(papers, _SIZE, 1))
    sides = [
        TowerEncoder(tower, papers.tokenizer, max_tokens=most)
        for tower, most in zip((pair.queries, pair.documents), MAX_TOKENS, strict=True)
    ]
    batch = TextPairs(
        pairs.queries,
        pairs.documents,
        pairs.own,
        tokens=(sides[0].tokens, sides[1].tokens),
        batch_size=128,
    ).batch(0)
    gradients = []
    for chunk in (0, _CHUNK):
        pair.zero_grad()
        ContrastiveLoss(temperature=TEMPERATURE, chunk=chunk)(pair, batch).backward()
        parts = [part.grad.flatten() for part in pair.parameters() if part.grad is not None]
        gradients.append(torch.cat(parts))
    return float((gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max())
