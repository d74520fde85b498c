"""Training runs of towers as jobs that workers do side by side."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from benchmarks.retrieve._abstracts import VOCABULARY, Abstracts
from numpy.typing import NDArray

from steelyard.catalog import Architecture
from steelyard.files import atomic_path
from steelyard.nn.towers import Tower, TowerPair
from steelyard.nn.transformer import build
from steelyard.resident import peak_resident_bytes
from steelyard.retrieve.towers import (
    TowerEncoder,
    begin_with_teacher,
    begin_with_texts,
    distill_queries,
    load_encoder,
    refine_queries,
    save_encoder,
    train_towers,
)
from steelyard.retrieve.towers.refinement import FrozenDocumentsLoss
from steelyard.train import EstimatorConfig
from steelyard.train.contrastive import ContrastiveLoss

__all__ = [
    "DistillJob",
    "FrozenJob",
    "PairJob",
    "Size",
    "Trained",
    "job_config",
    "loaded",
    "make_tower",
    "run_job",
    "student_of",
    "vectors_of",
]

TEMPERATURE = 0.05
MAX_TOKENS = (24, 64)


class Size(NamedTuple):
    """Shape of a tower.

    Attributes:
        layers: layers.
        width: width.
        dim: numbers of a text's vector.
    """

    layers: int
    width: int
    dim: int = 64

    def parameters(self) -> int:
        """Return parameters without the token table."""
        tower = Tower(build(architecture(self)), self.dim)
        return sum(p.numel() for n, p in tower.named_parameters() if n != "model.embedding.weight")


@dataclass(frozen=True, kw_only=True, eq=False)
class PairJob:
    """Two towers trained on pairs.

    Attributes:
        name: folder under `folder`.
        folder: folder of all jobs.
        papers: the papers.
        queries: shape of the tower of queries.
        documents: shape of the tower of documents.
        steps: steps of each round.
        batch: pairs of a batch.
        chunk: texts of which activations are held at once; 0 for all.
        rounds: rounds; from the second on with mined negatives.
        hard: mined negatives of a query.
        share: share of the labelled pairs and clozes.
        rate: peak learning rate.
        clozes: sentences with the rest of their abstract; None for all.
        seed: seed of weights, draws and orders.
    """

    name: str
    folder: Path
    papers: Abstracts
    queries: Size
    documents: Size
    steps: int
    batch: int = 64
    chunk: int = 0
    rounds: int = 1
    hard: int = 2
    share: float = 1.0
    rate: float = 1e-3
    clozes: int | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class DistillJob:
    """A student of a trained tower of queries."""

    name: str
    folder: Path
    papers: Abstracts
    teacher: str
    student: Size
    steps: int
    texts: int
    batch: int = 128
    rate: float = 3e-3
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenJob:
    """A student trained end to end on pairs against documents of a trained tower."""

    name: str
    folder: Path
    papers: Abstracts
    teacher: str
    student: Size
    steps: int
    batch: int = 128
    rate: float = 3e-3
    clozes: int | None = None
    start: str = ""
    begins_with_teacher: bool = False
    seed: int = 0


Job = PairJob | DistillJob | FrozenJob


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a job left.

    Attributes:
        losses: training loss of each step.
        seconds: processor time of the training.
        peak_bytes: most memory that the worker ever held.
        pairs: pairs that differ.
    """

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    peak_bytes: int = 0
    pairs: int = 0


def architecture(size: Size) -> Architecture:
    """Return a small Llama of a shape."""
    heads = max(1, size.width // 32)
    return Architecture(
        name=f"tower-{size.layers}x{size.width}",
        num_layers=size.layers,
        hidden_size=size.width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=size.width // heads,
        intermediate_size=size.width * 8 // 3 // 8 * 8,
        vocab_size=VOCABULARY,
        max_positions=192,
        tied_embeddings=True,
    )


def make_tower(papers: Abstracts, size: Size, seed: int) -> Tower:
    """Return a tower whose token table begins with the abstracts."""
    tower = Tower(build(architecture(size), seed=seed), size.dim, pooling="mean", seed=seed)
    begin_with_texts(tower.model, papers.token_rows)
    # Columns of the table are sorted by what they explain: a vector begins with the first ones.
    with torch.no_grad():
        tower.projection.copy_(torch.eye(size.dim, size.width))
    return tower


def run_job(job: Job) -> Trained:
    """Do a job in this process, with one thread."""
    torch.set_num_threads(1)
    run = {PairJob: _train_pair, DistillJob: _distill, FrozenJob: _refine}[type(job)]
    begin_s = time.process_time()
    losses, pairs = run(job)  # pyright: ignore[reportArgumentType]
    return Trained(
        losses=losses,
        seconds=time.process_time() - begin_s,
        peak_bytes=peak_resident_bytes(),
        pairs=pairs,
    )


def job_config(job: Job) -> EstimatorConfig:
    """Return the run of a job: warm-up, then a rate that falls in its second half."""
    return EstimatorConfig(
        steps=job.steps,
        batch_size=job.batch,
        learning_rate=job.rate,
        warmup_steps=min(10, job.steps // 5),
        cooldown_steps=job.steps // 2,
        weight_decay=0.1,
        seed=job.seed,
        threads=1,
    )


def _train_pair(job: PairJob) -> tuple[list[float], int]:
    """Train both towers, and keep their encoders."""
    pairs = job.papers.pairs(job.clozes, job.seed)
    if job.share < 1:
        rng = np.random.default_rng(job.seed)
        count = round(job.share * len(pairs))
        pairs = pairs.take(np.sort(rng.choice(len(pairs), count, replace=False)))
    towers = TowerPair(
        make_tower(job.papers, job.queries, job.seed),
        make_tower(job.papers, job.documents, job.seed),
    )
    found = train_towers(
        towers,
        job.papers.tokenizer,
        (pairs.queries, pairs.documents, pairs.own),
        job_config(job),
        job.folder / job.name / "run",
        loss=ContrastiveLoss(temperature=TEMPERATURE, chunk=job.chunk),
        rounds=job.rounds,
        hard_negatives=job.hard,
        max_tokens=MAX_TOKENS,
        groups=pairs.groups,
    )
    save_encoder(found.queries, job.folder / job.name / "queries")
    save_encoder(found.documents, job.folder / job.name / "documents")
    return found.losses, len(pairs)


def student_of(job: DistillJob | FrozenJob) -> TowerEncoder:
    """Return a student before its training.

    One to be distilled begins with its teacher's vectors of tokens; one trained end to end with the
    collection, as all towers, unless its job says otherwise.
    """
    tower = make_tower(job.papers, job.student, job.seed + 1000)
    if isinstance(job, DistillJob) or job.begins_with_teacher:
        begin_with_teacher(tower, loaded(job.folder / job.teacher / "queries").tower)
    return TowerEncoder(tower, job.papers.tokenizer, max_tokens=MAX_TOKENS[0])


def _distill(job: DistillJob) -> tuple[list[float], int]:
    """Train a student on texts alone."""
    teacher = loaded(job.folder / job.teacher / "queries")
    student = student_of(job)
    texts = job.papers.stream(job.texts, job.seed)
    losses = distill_queries(
        teacher, student, texts, job_config(job), job.folder / job.name / "run"
    )
    save_encoder(student, job.folder / job.name / "queries")
    return losses, len(texts)


def _refine(job: FrozenJob) -> tuple[list[float], int]:
    """Train a student on pairs; documents are vectors of the trained tower."""
    pairs = job.papers.pairs(job.clozes, job.seed)
    vectors = vectors_of(job.folder / job.teacher / "documents", pairs.documents)
    student = loaded(job.folder / job.start / "queries") if job.start else student_of(job)
    losses = refine_queries(
        student,
        vectors,
        (pairs.queries, pairs.own),
        job_config(job),
        job.folder / job.name / "run",
        loss=FrozenDocumentsLoss(temperature=TEMPERATURE),
        hard_negatives=0,
        groups=pairs.groups,
    )
    save_encoder(student, job.folder / job.name / "queries")
    return losses, len(pairs)


def loaded(folder: Path) -> TowerEncoder:
    """Return the encoder in a folder."""
    found = load_encoder(folder)
    assert isinstance(found, TowerEncoder)
    return found


def vectors_of(folder: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return vectors of texts by the encoder in a folder; they are kept there for the next call."""
    kept = folder / f"kept-{len(texts)}.npy"
    if not kept.is_file():
        # Another worker may ask for the same at the same time.
        with atomic_path(kept) as beside, beside.open("wb") as stream:
            np.save(stream, loaded(folder).encode(texts))
    return np.load(kept)
