"""The same student by sentence-transformers, and BM25 by bm25s, in an environment of their own."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from benchmarks import peers
from benchmarks.common import Check, ratio
from benchmarks.retrieve._abstracts import Abstracts, quality
from benchmarks.retrieve._tower_runs import (
    MAX_TOKENS,
    DistillJob,
    job_config,
    loaded,
    student_of,
    vectors_of,
)
from benchmarks.serve._json_process import JsonProcess, peer_environment
from numpy.typing import NDArray

from steelyard.data.tokenizer import END_OF_TEXT
from steelyard.files import write_json
from steelyard.nn.towers import save_tower
from steelyard.retrieve.towers import TowerEncoder, distill_to_vectors

__all__ = ["bm25_scores", "peer_checks", "start_peer"]

_WARM_UP = 5
"""Steps before the clock runs."""


def start_peer() -> JsonProcess:
    """Start the environment of the peers; it is idle until it is asked."""
    hint = "python -m benchmarks peers install sentence-transformers"
    program = str(Path(__file__).with_name("_towers_program.py"))
    command = [str(peers.python("sentence-transformers")), program]
    return JsonProcess(command, {}, peer_environment() | {"OMP_NUM_THREADS": "1"}, hint)


def bm25_scores(papers: Abstracts, peer: JsonProcess, folder: Path) -> NDArray[np.float32]:
    """Return BM25 of every abstract for every title that is kept aside [Q, N]."""
    write_json(folder / "bm25.json", {"documents": papers.texts, "queries": papers.asked})
    peer.ask({"bm25": str(folder / "bm25.json"), "scores": str(folder / "bm25.npy")})
    return np.load(folder / "bm25.npy")


def peer_checks(job: DistillJob, peer: JsonProcess, *, rounds: int = 3) -> list[Check]:
    """Distil the same student on both sides, with the same texts, vectors and steps.

    Both do some steps before, untimed: what a process loads and imports once is no training.

    Args:
        job: the student.
        peer: their process.
        rounds: times that both are timed, in turn.

    Returns:
        The checks.
    """
    folder = job.folder / "peer"
    texts = job.papers.stream(job.texts, job.seed)
    vectors = loaded(job.folder / job.teacher / "queries").encode(texts)
    documents = vectors_of(job.folder / job.teacher / "documents", job.papers.texts)
    begin = student_of(job).encode(job.papers.asked)
    _write(folder, job, texts, vectors)
    times: list[tuple[float, float]] = []
    student = student_of(job)
    for number in range(-1, rounds):
        now = replace(job, steps=_WARM_UP) if number < 0 else job
        student, seconds = _ours(now, texts, vectors, folder / f"run-{number}")
        theirs_s = peer.ask(_asked(now, folder))["seconds"]
        if number >= 0:
            times.append((seconds, theirs_s))
    same = float(np.abs(np.load(folder / "before.npy") - begin).max())
    ours = quality(job.papers, student.encode(job.papers.asked), documents)
    theirs = quality(job.papers, np.load(folder / "after.npy"), documents)
    examples = job.steps * job.batch
    spread = ratio([theirs_s for _, theirs_s in times], [ours_s for ours_s, _ in times])
    ours_s, theirs_s = np.median(np.array(times), axis=0)
    print(
        f"distilled by {peer.name}: nDCG@10 {theirs.ndcg:.4f}, "
        f"{examples / theirs_s:,.0f} examples a processor second; ours {ours.ndcg:.4f}, "
        f"{examples / ours_s:,.0f}: {spread.median:.2f} times theirs ({spread.low:.2f} to "
        f"{spread.high:.2f}); before training vectors differ by {same:.1e}"
    )
    return [
        Check("6 vectors before training, largest difference", same, 1e-4, "lower"),
        Check("6 nDCG over sentence-transformers", ours.ndcg / theirs.ndcg, 1.0, "higher"),
        Check("6 examples/s over sentence-transformers", spread.median, 1.2, "higher"),
    ]


def _ours(
    job: DistillJob, texts: list[str], vectors: NDArray[np.float32], folder: Path
) -> tuple[TowerEncoder, float]:
    """Return a student of ours, and the processor seconds of its training."""
    student = student_of(job)
    begin_s = time.process_time()
    distill_to_vectors(student, texts, vectors, job_config(job), folder)
    return student, time.process_time() - begin_s


def _asked(job: DistillJob, folder: Path) -> dict[str, object]:
    """Return what their process is asked."""
    return {
        "distill": str(folder),
        "steps": job.steps,
        "batch": job.batch,
        "rate": job.rate,
        "seed": job.seed,
    }


def _write(folder: Path, job: DistillJob, texts: list[str], vectors: NDArray[np.float32]) -> None:
    """Write the student before its training, what it learns from, and what is asked."""
    folder.mkdir(parents=True, exist_ok=True)
    student = student_of(job)
    save_tower(student.tower, folder)
    student.tokenizer.save(str(folder / "model" / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": END_OF_TEXT}
    write_json(folder / "model" / "tokenizer_config.json", about)
    write_json(folder / "about.json", {"max_tokens": MAX_TOKENS[0]})
    write_json(folder / "texts.json", texts)
    write_json(folder / "asked.json", job.papers.asked)
    np.save(folder / "vectors.npy", vectors)
    torch.set_num_threads(1)
