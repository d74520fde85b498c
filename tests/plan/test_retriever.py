"""Plans of retrievers: the joint search against every combination, cores, lines, gaps."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import CalibrationError, ConfigError, DataError, InfeasibleError
from steelyard.laws import fit, power_law
from steelyard.plan.retrieve.retriever import StudentGap, retriever, serving_cores
from steelyard.plan.retrieve.retriever_cost import (
    DocumentIndex,
    RetrieverLoad,
    TowerOption,
    TrainingPlan,
    training_flops,
)
from steelyard.plan.retrieve.retriever_gap import fit_gap
from steelyard.plan.retrieve.retriever_speed import LatencySample, SpeedLine, time_calls

SIZES = np.geomspace(1e5, 3e6, 6)
LAW = fit(power_law("parameters"), {"parameters": SIZES}, 900 / SIZES**0.5 + 0.5, prior=None)
TOWERS = [TowerOption(name=f"{n:,.0f}", parameters=int(n)) for n in (1e5, 1e6, 1e7)]
INDEXES = [
    DocumentIndex(name="exact", recall=1.0, memory_bytes=5e8, median_s=0.02, tail=1.2),
    DocumentIndex(name="codes", recall=0.95, memory_bytes=1e8, median_s=0.001, tail=1.5),
    DocumentIndex(name="coarse", recall=0.6, memory_bytes=1e8, median_s=0.0002, tail=1.5),
]
SPEED = SpeedLine(overhead_s=2e-4, s_per_work=1e-10, tail=1.3)
TRAINING = TrainingPlan(pairs=1_000_000)
GAP = StudentGap(scale=0.01, exponent=0.3, factor=1.5)


def _load(**fields: float) -> RetrieverLoad:
    return RetrieverLoad(documents=10**6, **({"queries_per_s": 50.0, "p95_s": 0.02} | fields))


def _plan(load: RetrieverLoad, gap: StudentGap | None = GAP):
    return retriever(
        load,
        law=LAW,
        training=TRAINING,
        teachers=TOWERS,
        students=TOWERS,
        indexes=INDEXES,
        speed=SPEED,
        gap=gap,
    )


def test_the_best_is_the_best_of_all_combinations() -> None:
    plan = _plan(_load())
    nats = {}
    for teacher, student, index in itertools.product(TOWERS, TOWERS, INDEXES):
        if student.parameters > teacher.parameters or index.recall < 0.9:
            continue
        encode = SPEED.median_s(2 * student.parameters * 16)
        spread = math.hypot(0.3 * encode, (index.tail - 1) * index.median_s)
        service = encode + index.median_s
        _, p95 = serving_cores(50.0, service, service + spread, 0.02)
        if p95 > 0.02:
            continue
        base = LAW.predict({"parameters": float(teacher.parameters)}, extrapolate=True).first.value
        ratio = teacher.parameters / student.parameters
        nats[teacher.name, student.name, index.name] = base + (
            0.01 * ratio**0.3 if ratio > 1 else 0.0
        )
    best = min(nats, key=lambda name: nats[name])
    assert (plan.best.teacher.name, plan.best.student.name, plan.best.index.name) == best
    assert math.isclose(plan.best.entropy.value, nats[best], rel_tol=1e-9)
    assert len(plan.others) + 1 == len(nats)
    assert plan.best.entropy.low < plan.best.entropy.value < plan.best.entropy.high
    # The teacher is too slow for the deadline, which is why there is a student.
    assert plan.teacher_p95_s > 0.02 > plan.best.p95_s
    assert any("recall" in why for _, why in plan.rejected)


def test_limits_say_what_they_cost() -> None:
    rich = _plan(_load())
    poor = _plan(_load(budget_usd=0.95 * rich.best.total_usd))
    assert poor.best.entropy.value >= rich.best.entropy.value
    assert any("$" in why for _, why in poor.rejected)
    with pytest.raises(InfeasibleError, match="are allowed"):
        _plan(_load(p95_s=1e-4))
    with pytest.raises(InfeasibleError, match="bytes"):
        _plan(_load(memory_bytes=1e6))
    with pytest.raises(ConfigError, match="p95_s"):
        _load(p95_s=0.0)


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(0.1, 5000),
    service=st.floats(1e-5, 0.05),
    tail=st.floats(1, 3),
    slack=st.floats(1.01, 20),
)
def test_one_core_less_breaks_the_deadline(
    rate: float, service: float, tail: float, slack: float
) -> None:
    deadline = tail * service * slack
    cores, p95 = serving_cores(rate, service, tail * service, deadline)
    assert p95 <= deadline + 1e-12
    assert rate * service / cores < 1
    if cores > max(1, math.ceil(rate * service * 1.0001)):
        busy = rate * service / (cores - 1)
        assert tail * service + service * math.log(busy / 0.05) / (1 - busy) > deadline


def test_operations_are_those_of_the_stages() -> None:
    teacher, student = TOWERS[1], TOWERS[0]
    training = TrainingPlan(
        pairs=10,
        epochs=2,
        hard_negatives=3,
        query_tokens=4,
        document_tokens=8,
        distilled_texts=100,
        unique_texts=50,
    )
    pairs = 6 * 1e6 * (4 + 8 * 4) * 20
    distilled = 2 * 1e6 * 4 * 50 + 6 * 1e5 * 4 * 100
    documents = 2 * 1e6 * 8 * 7
    assert training_flops(training, teacher, student, 7) == pairs + distilled + documents
    assert training_flops(training, teacher, teacher, 7) == pairs + documents


def test_lines_go_through_what_was_timed() -> None:
    samples = [
        LatencySample(work=work, median_s=1e-3 + 2e-9 * work, p95_s=1.4e-3 + 2.8e-9 * work)
        for work in (1e5, 1e6, 1e7)
    ]
    line = SpeedLine.through(samples)
    assert math.isclose(line.median_s(5e6), 0.011, rel_tol=1e-6)
    assert math.isclose(line.p95_s(5e6), 0.0154, rel_tol=1e-6)
    with pytest.raises(CalibrationError, match="1 amounts"):
        SpeedLine.through(samples[:1])
    ticks = iter(np.cumsum([0.0, *([0.01, 0.5] * 20)]))
    told = time_calls(lambda _: None, 20, 3.0, clock=lambda: float(next(ticks)))
    assert math.isclose(told.median_s, 0.01) and told.work == 3.0


def test_gaps_are_fitted_to_students() -> None:
    ratios = np.array([2.0, 8.0, 32.0])
    columns = {
        "parameters": np.array([64e5, *(64e5 / ratios)]),
        "entropy": np.array([1.0, *(1.0 + 0.02 * ratios**0.5)]),
    }
    gap = fit_gap(columns, np.array([np.nan, 64e5, 64e5, 64e5]))
    assert gap is not None and math.isclose(gap.exponent, 0.5, rel_tol=1e-6)
    assert math.isclose(gap.nats(64e5, 4e5).value, 0.08, rel_tol=1e-6)
    assert fit_gap(columns, np.full(4, np.nan)) is None
    with pytest.raises(DataError, match="was a teacher"):
        fit_gap(columns, np.array([np.nan, 5.0, np.nan, np.nan]))
