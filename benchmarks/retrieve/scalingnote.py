"""Towers in stages: a law of their sizes, small students of large ones, and what serving takes.

Titles find their abstract among all. A tenth of the titles is kept aside from everything; the
abstracts are the collection, known to all sides. 1 holds students against their teacher and against
the same students trained end to end, 2 fits the law of sizes, 3 bounds what a student changes, 4
grows the batch in constant memory, 5 serves beside a prediction, 6 distils the same student with
sentence-transformers. Lexical rivals stand in every table.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._abstracts import (
    Abstracts,
    Quality,
    fused,
    load_abstracts,
    of_scores,
    quality,
    tfidf_scores,
)
from benchmarks.retrieve._tower_batches import batch_checks
from benchmarks.retrieve._tower_law import Ladder, law_checks
from benchmarks.retrieve._tower_runs import (
    DistillJob,
    FrozenJob,
    Job,
    PairJob,
    Size,
    Trained,
    run_job,
    vectors_of,
)
from benchmarks.retrieve._tower_serving import serving_checks
from benchmarks.retrieve._towers_peer import bm25_scores, peer_checks, start_peer

from steelyard.parallel import parallel_map, torch_threads

PAPER = ["23-scalingnote"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is.

    Attributes:
        papers: papers; None for all.
        ladder: sizes of the law.
        teacher: shape of teachers.
        student: shape of students.
        distilled: steps of students, however they are trained.
        texts: texts that students learn from, for the curve; the last is that of all others.
        seeds: seeds of teachers and students.
        batches: sizes of batches.
        batch_steps: steps with each.
    """

    papers: int | None
    ladder: Ladder
    teacher: Size
    student: Size
    distilled: int
    texts: tuple[int, ...]
    seeds: int
    batches: tuple[int, ...]
    batch_steps: int


_FULL = Scale(
    papers=None,
    ladder=Ladder(
        widths=(32, 48, 64, 96, 128, 192, 256),
        layers=2,
        repeated=128,
        steps=144,
        batch=128,
        shares=(0.25, 0.5),
    ),
    teacher=Size(2, 128),
    student=Size(1, 60),
    distilled=400,
    texts=(500, 2000, 8000, 20_000),
    seeds=3,
    batches=(64, 256, 1024),
    batch_steps=8,
)
_QUICK = Scale(
    papers=600,
    ladder=Ladder(widths=(48, 96), layers=1, repeated=96, steps=20, batch=64, repeats=1),
    teacher=Size(1, 96),
    student=Size(1, 32),
    distilled=40,
    texts=(250, 2000),
    seeds=1,
    batches=(32, 128),
    batch_steps=6,
)


def run(quick: bool) -> list[Check]:
    """Train everything, then ask."""
    scale = _QUICK if quick else _FULL
    # Learning rates were chosen on the titles that seed 0 keeps aside.
    papers = load_abstracts(most=scale.papers, seed=1)
    with torch_threads(1), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = _trained(scale, papers, folder)
        peer = start_peer()
        lexical = {"BM25": bm25_scores(papers, peer, folder), "TF-IDF": tfidf_scores(papers)}
        checks = _stage_checks(scale, papers, folder, lexical)
        checks += law_checks(scale.ladder.rungs(folder, papers), is_full=not quick)
        checks += _bound_checks(scale, papers, folder)
        checks += batch_checks(scale.batches, scale.batch_steps, papers, folder)
        served = _name("teacher", 0), _name("student", 0), scale.student
        checks += serving_checks(papers, folder, served, rounds=3 if quick else 9)
        checks += peer_checks(_distillation(scale, papers, folder, 0, scale.texts[-1]), peer)
        peer.close()
    print(f"{sum(item.seconds for item in done):,.0f} processor seconds of training")
    return checks


def _name(kind: str, *parts: int) -> str:
    """Return the name of a job."""
    return "-".join([kind, *map(str, parts)])


def _trained(scale: Scale, papers: Abstracts, folder: Path) -> list[Trained]:
    """Do all jobs: towers on pairs first, then those that need them."""
    ladder = scale.ladder
    first: list[PairJob] = list(ladder.jobs(folder, papers))
    first += [
        PairJob(
            name=_name(kind, seed),
            folder=folder,
            papers=papers,
            queries=queries,
            documents=scale.teacher,
            steps=ladder.steps,
            batch=ladder.batch,
            rate=ladder.rate_of(scale.teacher.width),
            seed=seed,
        )
        for kind, queries in (("teacher", scale.teacher), ("joint", scale.student))
        for seed in range(scale.seeds)
    ]
    # The longest first, so that no worker waits at the end for one that began late.
    first.sort(key=lambda job: -job.steps * job.documents.width**2)
    second: list[Job] = []
    for seed in range(scale.seeds):
        second.append(_distillation(scale, papers, folder, seed, scale.texts[-1]))
        shared = _name("teacher", seed)
        given = {"folder": folder, "papers": papers, "teacher": shared, "seed": seed}
        given |= {"student": scale.student}
        name = _name("frozen", seed)
        second.append(FrozenJob(name=name, steps=scale.distilled, **given))
        name, same = _name("same", seed), {"begins_with_teacher": True}
        second.append(FrozenJob(name=name, steps=scale.distilled, **same, **given))
    for count in scale.texts[:-1]:
        second.append(_distillation(scale, papers, folder, 0, count))
    done = parallel_map(run_job, first, workers=2)
    done += parallel_map(run_job, second, workers=2)
    third = [
        FrozenJob(
            name=_name("refined", seed),
            folder=folder,
            papers=papers,
            teacher=_name("teacher", seed),
            student=scale.student,
            steps=max(10, scale.distilled // 4),
            rate=1e-3,
            start=_name("student", seed),
            seed=seed,
        )
        for seed in range(scale.seeds)
    ]
    return done + parallel_map(run_job, third, workers=2)


def _distillation(
    scale: Scale, papers: Abstracts, folder: Path, seed: int, texts: int
) -> DistillJob:
    """Return the job of a student."""
    is_main = texts == scale.texts[-1]
    return DistillJob(
        name=_name("student", seed) if is_main else _name("few", texts),
        folder=folder,
        papers=papers,
        teacher=_name("teacher", seed),
        student=scale.student,
        steps=scale.distilled,
        texts=texts,
        seed=seed,
    )


def _stage_checks(
    scale: Scale, papers: Abstracts, folder: Path, lexical: dict[str, np.ndarray]
) -> list[Check]:
    """Hold students against their teacher, and against end-to-end training."""
    table: dict[str, list[Quality]] = {}
    for seed in range(scale.seeds):
        teacher = _name("teacher", seed)
        joint = _name("joint", seed)
        documents = vectors_of(folder / teacher / "documents", papers.texts)
        rows = {
            "teacher": teacher,
            "student, distilled": _name("student", seed),
            "student, distilled and refined": _name("refined", seed),
            "student, end to end, documents frozen": _name("frozen", seed),
            "student, end to end, from its teacher": _name("same", seed),
        }
        for label, job in rows.items():
            asked = vectors_of(folder / job / "queries", papers.asked)
            table.setdefault(label, []).append(quality(papers, asked, documents))
            hybrid = of_scores(papers, fused(lexical["BM25"], asked @ documents.T))
            table.setdefault(f"{label} + BM25", []).append(hybrid)
        other = vectors_of(folder / joint / "documents", papers.texts)
        asked = vectors_of(folder / joint / "queries", papers.asked)
        found = quality(papers, asked, other)
        table.setdefault("student, end to end, documents joint", []).append(found)
    for label, scores in lexical.items():
        table[label] = [of_scores(papers, scores)]
    means = _printed(table)
    student = means["student, distilled"]
    frozen = means["student, end to end, documents frozen"]
    joint = means["student, end to end, documents joint"]
    same = means["student, end to end, from its teacher"]
    fewer = scale.teacher.parameters() / scale.student.parameters()
    return [
        Check("1 query operations, teacher over student", fewer, 8.0, "higher"),
        Check("1 student over teacher, nDCG", student / means["teacher"], 0.97, "higher"),
        Check("1 student over end to end, documents frozen", student / frozen, 1.03, "higher"),
        Check("1 student over end to end, documents joint", student / joint, 1.03, "higher"),
        # The stricter rival: it too begins with the teacher's tokens, and has labels besides.
        Check("1 student over end to end from its teacher", student / same, 1.03, "higher"),
    ]


def _printed(table: dict[str, list[Quality]]) -> dict[str, float]:
    """Print the table, and return mean nDCG of each row."""
    print(f"{'titles find their abstract':42} nDCG@10 (seeds)          first  entropy")
    means = {}
    for label, rows in table.items():
        values = [row.ndcg for row in rows]
        means[label] = float(np.mean(values))
        hit, nats = np.mean([row.hit for row in rows]), np.mean([row.entropy for row in rows])
        spread = f"{min(values):.3f}-{max(values):.3f}"
        print(f"{label:42} {means[label]:.3f} ({spread}) {hit:14.3f} {nats:8.3f}")
    return means


def _bound_checks(scale: Scale, papers: Abstracts, folder: Path) -> list[Check]:
    """Compare changes of scores with distances of vectors, and distances with texts seen."""
    place = folder / _name("teacher", 0)
    teacher = vectors_of(place / "queries", papers.asked)
    documents = vectors_of(place / "documents", papers.texts)
    means, worst = [], 0.0
    for count in scale.texts:
        is_main = count == scale.texts[-1]
        job = _name("student", 0) if is_main else _name("few", count)
        student = vectors_of(folder / job / "queries", papers.asked)
        distances = np.linalg.norm(student - teacher, axis=1)
        changes = np.abs((student - teacher) @ documents.T).max(axis=1)
        worst = max(worst, float((changes / distances).max()))
        means.append(float((distances**2).mean()))
    logs = np.log(scale.texts), np.log(means)
    slope, base = np.polyfit(*logs, 1)
    left = float(((logs[1] - base - slope * logs[0]) ** 2).sum())
    spread = float(((logs[1] - logs[1].mean()) ** 2).sum())
    told = ", ".join(f"{n:,}: {mse:.4f}" for n, mse in zip(scale.texts, means, strict=True))
    print(f"squared distance to the teacher by texts ({told}): falls with exponent {-slope:.3f}")
    falls = float(np.mean(np.diff(means) < 0))
    return [
        Check("3 change of a score over the bound, worst", worst, 1 + 1e-5, "lower"),
        Check("3 squared distance falls with texts", falls, 1.0, "higher"),
        Check("3 R2 of that line in logs", 1 - left / spread, 0.9, "higher"),
    ]
