"""Teacher, student and index of a retriever, chosen together for a load, a deadline and money."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.plan.retrieve.retriever_cost import (
    DocumentIndex,
    RetrieverLoad,
    TowerOption,
    TrainingPlan,
    training_flops,
)
from steelyard.plan.retrieve.retriever_speed import SpeedLine, joined_p95_s

__all__ = ["RetrieverDesign", "RetrieverPlan", "StudentGap", "retriever"]


@dataclass(frozen=True, kw_only=True)
class StudentGap:
    """How much more surprised a student is than its teacher: c (N_teacher / N_student)^g.

    Attributes:
        scale: nats at equal sizes.
        exponent: g, 0 or more.
        factor: factor by which measured gaps lie around it, 80 % of them.
    """

    scale: float
    exponent: float
    factor: float = 1.0

    def nats(self, teacher: float, student: float) -> Estimate:
        """Return the gap of a student.

        Args:
            teacher: parameters of the teacher.
            student: parameters of the student.

        Returns:
            Nats with an 80 % interval; none where the student is the teacher.
        """
        if student >= teacher:
            return Estimate(0.0, 0.0, 0.0)
        value = self.scale * (teacher / student) ** self.exponent
        return Estimate(value, value / self.factor, value * self.factor)


@dataclass(frozen=True, kw_only=True)
class RetrieverDesign:
    """One retriever.

    Attributes:
        teacher: tower of documents, and teacher of queries.
        student: tower of queries that serves.
        index: index of the documents.
        p95_s: latency that 95 % of the queries stay below, waiting included.
        alone_p95_s: the same of a query that waits for none.
        service_s: median seconds of one query on a core.
        cores: cores that serve.
        offline_flops: operations of training, distillation and encoding.
        offline_usd: what they cost.
        online_usd_per_hour: what serving costs.
        total_usd: both, over the hours of service.
        entropy: contrastive entropy in nats with its 80 % interval.
    """

    teacher: TowerOption
    student: TowerOption
    index: DocumentIndex
    p95_s: float
    alone_p95_s: float
    service_s: float
    cores: int
    offline_flops: float
    offline_usd: float
    online_usd_per_hour: float
    total_usd: float
    entropy: Estimate


@dataclass(frozen=True, kw_only=True)
class RetrieverPlan:
    """What was chosen, and why the others lost.

    Attributes:
        best: the design of least predicted entropy; of equal ones the cheapest.
        others: designs that fit too, best first.
        rejected: what does not fit, and why.
        teacher_p95_s: latency if the teacher served the queries itself.
    """

    best: RetrieverDesign
    others: Sequence[RetrieverDesign]
    rejected: Sequence[tuple[str, str]] = field(default_factory=tuple)
    teacher_p95_s: float = math.nan


def retriever(
    load: RetrieverLoad,
    *,
    law: Fit,
    training: TrainingPlan,
    teachers: Sequence[TowerOption],
    students: Sequence[TowerOption],
    indexes: Sequence[DocumentIndex],
    speed: SpeedLine,
    gap: StudentGap | None = None,
) -> RetrieverPlan:
    """Choose towers and index.

    Every teacher is tried with itself and with each smaller student, and with each index. What
    keeps deadline, recall, memory and money stays, ordered by the entropy that the law predicts.

    Args:
        load: queries, deadline, documents and money.
        law: fit with the inputs "parameters" and, where it has two, "pairs".
        training: pairs, steps and texts of the stages.
        teachers: towers of documents.
        students: towers of queries.
        indexes: indexes with recall, memory and seconds for the load's documents.
        speed: seconds of encoding a text, by its operations.
        gap: what students lose; without it students count as their teachers, and only teachers
            are told apart.

    Returns:
        The plan.

    Raises:
        InfeasibleError: nothing fits; the nearest miss is named.
        ConfigError: no teacher, student or index is given.

    Source: Xia et al. 2024 (ScalingNote, arXiv 2411.15766), stages and serving; Fang et al. 2024
        (arXiv 2403.18684), the law; waiting of Poisson arrivals: Kleinrock 1975, M/M/1.
    """
    if not (teachers and indexes and (students or teachers)):
        raise ConfigError(
            f"{len(teachers)} teachers and {len(indexes)} indexes", hint="give one of each at least"
        )
    designs: list[RetrieverDesign] = []
    misses: list[tuple[float, str, str]] = []
    for teacher, student, index in _combinations(teachers, students, indexes):
        made = _design(load, law, training, (teacher, student, index), speed, gap)
        excess, why = _shortage(load, made)
        if why:
            misses.append((excess, f"{teacher.name}, asked by {student.name}, {index.name}", why))
        else:
            designs.append(made)
    if not designs:
        _, what, why = min(misses)
        raise InfeasibleError(
            f"none of {len(misses)} retrievers fits; the nearest is {what}: {why}",
            hint="give more time or money, fewer documents, or smaller towers",
        )
    designs.sort(key=lambda item: (round(item.entropy.value, 6), item.total_usd))
    best = designs[0]
    encode_s = speed.median_s(best.teacher.query_flops(training))
    index = best.index
    return RetrieverPlan(
        best=best,
        others=designs[1:],
        rejected=[(what, why) for _, what, why in misses],
        teacher_p95_s=joined_p95_s((encode_s, speed.tail), (index.median_s, index.tail)),
    )


def _combinations(
    teachers: Sequence[TowerOption],
    students: Sequence[TowerOption],
    indexes: Sequence[DocumentIndex],
) -> Iterator[tuple[TowerOption, TowerOption, DocumentIndex]]:
    """Yield every teacher with itself and each smaller student, and with each index."""
    for teacher in teachers:
        smaller = [item for item in students if item.parameters < teacher.parameters]
        for student in (teacher, *smaller):
            for index in indexes:
                yield teacher, student, index


def _design(
    load: RetrieverLoad,
    law: Fit,
    training: TrainingPlan,
    parts: tuple[TowerOption, TowerOption, DocumentIndex],
    speed: SpeedLine,
    gap: StudentGap | None,
) -> RetrieverDesign:
    """Cost one retriever."""
    teacher, student, index = parts
    encode_s = speed.median_s(student.query_flops(training))
    service_s = encode_s + index.median_s
    alone_s = joined_p95_s((encode_s, speed.tail), (index.median_s, index.tail))
    cores, p95_s = serving_cores(load.queries_per_s, service_s, alone_s, load.p95_s)
    offline = training_flops(training, teacher, student, load.documents)
    offline_usd = speed.s_per_work * offline / 3600 * load.usd_per_core_hour
    online = cores * load.usd_per_core_hour
    inputs = {"parameters": float(teacher.parameters), "pairs": float(training.pairs)}
    known = {name: inputs[name] for name in law.law.inputs}
    entropy = law.predict(known, extrapolate=True).first
    if gap is not None:
        entropy = _added(entropy, gap.nats(teacher.parameters, student.parameters))
    return RetrieverDesign(
        teacher=teacher,
        student=student,
        index=index,
        p95_s=p95_s,
        alone_p95_s=alone_s,
        service_s=service_s,
        cores=cores,
        offline_flops=offline,
        offline_usd=offline_usd,
        online_usd_per_hour=online,
        total_usd=offline_usd + online * load.hours,
        entropy=entropy,
    )


def serving_cores(
    queries_per_s: float, service_s: float, alone_s: float, p95_s: float
) -> tuple[int, float]:
    """Return the fewest cores that keep a deadline, and the latency on them.

    Queries arrive at random and are spread evenly; each core serves its own line.

    Args:
        queries_per_s: rate of all queries.
        service_s: median seconds of one.
        alone_s: what 95 % of lone queries stay below.
        p95_s: deadline for 95 % of them.

    Returns:
        Cores, and the 95th percentile of waiting and service in seconds; where a lone query is
        too slow already, the cores that carry the load, and the latency of a lone one.

    Source: Kleinrock 1975, M/M/1: P(wait > t) = r exp(-(1 - r) t / s), an upper bound for services
        that vary less.
    """
    least = max(1, math.ceil(queries_per_s * service_s * 1.0001))
    if alone_s > p95_s:
        return least, alone_s
    cores = least
    while True:
        busy = queries_per_s * service_s / cores
        wait_s = service_s * math.log(busy / 0.05) / (1 - busy) if busy > 0.05 else 0.0
        if alone_s + wait_s <= p95_s or not wait_s:
            return cores, alone_s + wait_s
        cores += 1


def _shortage(load: RetrieverLoad, made: RetrieverDesign) -> tuple[float, str]:
    """Return the largest excess over a limit, as a ratio, and what it is; no word where it fits."""
    limits = [
        (
            made.p95_s / load.p95_s,
            f"95 % of queries take {made.p95_s * 1e3:.3g} ms, {load.p95_s * 1e3:.3g} are allowed",
        ),
        (
            load.recall / max(made.index.recall, 1e-9),
            f"recall {made.index.recall:.3g}, {load.recall:.3g} is wanted",
        ),
    ]
    if load.memory_bytes:
        held = made.index.memory_bytes
        said = f"{held:.3g} bytes, {load.memory_bytes:.3g} are there"
        limits.append((held / load.memory_bytes, said))
    if load.budget_usd:
        said = f"${made.total_usd:,.2f}, ${load.budget_usd:,.2f} are there"
        limits.append((made.total_usd / load.budget_usd, said))
    excess, said = max(limits)
    return excess, said if excess > 1 else ""


def _added(left: Estimate, right: Estimate) -> Estimate:
    """Return the sum of two independent estimates; squares of their half-widths add."""
    value = left.value + right.value
    low = math.hypot(left.value - left.low, right.value - right.low)
    high = math.hypot(left.high - left.value, right.high - right.value)
    return Estimate(value, max(0.0, value - low), value + high)
