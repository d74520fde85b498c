"""Plans of tenants: obvious choices, what may never get worse, filters beside brute force."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.catalog.search_rates import reference_search_rates
from steelyard.cli.main import main
from steelyard.cli.tenancy import sampled_hardness
from steelyard.cost.vector_search.tenant_work import SEARCHES, scan_work
from steelyard.errors import ConfigError, DataError, InfeasibleError
from steelyard.plan.retrieve.tenancy import (
    TenancyOption,
    TenancyPlan,
    plan_tenancy,
    price_ways,
)
from steelyard.plan.retrieve.tenancy_goal import TenancyGoal
from steelyard.retrieve import tenant_rates
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.tenants import ClusterTreeIndex

RATES = reference_search_rates()


def _plan(**wanted: float) -> TenancyPlan:
    sizes = {"vectors": 100_000, "dim": 128, "tenants": 100} | wanted
    return plan_tenancy(TenancyGoal(**sizes), RATES)  # pyright: ignore[reportArgumentType]


def _option(plan: TenancyPlan, way: str) -> TenancyOption:
    return next(item for item in (plan.chosen, *plan.others) if item.way == way)


def test_tenants_of_few_vectors_are_scanned() -> None:
    plan = _plan(tenants=2000)
    assert plan.chosen.way == "plain scan"
    assert _option(plan, "cluster tree").lost == "does the same work for this tenant"


def test_one_index_serves_tenants_who_all_see_everything() -> None:
    plan = _plan(dim=64, tenants=50, seen_by=50, memory_bytes=1e8)
    assert plan.chosen.way == "shared index, filtered"
    assert "times the memory" in _option(plan, "index per tenant").lost


def test_copies_pay_where_memory_is_free_and_a_tree_where_it_is_not() -> None:
    wide = {"tenants": 20.0, "seen_by": 8.0}
    assert _plan(**wide).chosen.way == "index per tenant"
    assert _plan(**wide, memory_bytes=8e7).chosen.way == "cluster tree"


@settings(max_examples=40, deadline=None)
@given(
    share=st.floats(0.0002, 1.0),
    seen_by=st.floats(1, 20),
    locality=st.floats(0, 1),
    recall=st.floats(0.5, 0.99),
    more=st.floats(0, 0.01),
    k=st.sampled_from([1, 10, 100]),
    memory=st.floats(6e7, 1e9),
)
def test_more_recall_is_never_faster_and_more_memory_never_slower(
    share: float,
    seen_by: float,
    locality: float,
    recall: float,
    more: float,
    k: int,
    memory: float,
) -> None:
    goal = TenancyGoal(
        vectors=100_000,
        dim=128,
        tenants=20,
        seen_by=seen_by,
        selectivity=share,
        locality=locality,
        recall=recall,
        k=k,
        memory_bytes=memory,
    )

    def fastest(wanted: TenancyGoal) -> float:
        return plan_tenancy(wanted, RATES).chosen.query_s.value

    plan = plan_tenancy(goal, RATES)
    higher = plan_tenancy(replace(goal, recall=min(recall + more, 1.0)), RATES)
    for option in (plan.chosen, *plan.others):
        dearer = _option(higher, option.way)
        assert dearer.query_s.value >= option.query_s.value * (1 - 1e-9)
        assert option.query_s.low < option.query_s.value < option.query_s.high
    assert fastest(replace(goal, memory_bytes=2 * memory)) <= plan.chosen.query_s.value


def test_rates_of_an_earlier_calibration_with_other_parts_are_not_mixed_with_those_of_today() -> (
    None
):
    goal = TenancyGoal(vectors=100_000, dim=128, tenants=20)
    old = {"tenant tree": {"call": 1.0, "again": 1.0}, "tenant own": dict(RATES.query_s["ivf"])}
    known = replace(RATES, query_s={**RATES.query_s, **old})
    assert price_ways(goal, known) == price_ways(goal, RATES)
    slower = {part: 2 * rate for part, rate in RATES.query_s["tenant tree"].items()}
    today = replace(RATES, query_s={**RATES.query_s, "tenant tree": slower})
    assert price_ways(goal, today)[1].query_s.value == 2 * price_ways(goal, RATES)[1].query_s.value


@given(st.integers(1, 10**7), st.integers(1, 2000), st.floats(0, 1))
def test_what_is_further_away_is_part_of_what_is_read(size: int, dim: int, share: float) -> None:
    work = scan_work(size, dim, share, 2 * size)
    read = [work[part] for part in ("bytes", "beyond near", "far", "scattered far")]
    assert read == sorted(read, reverse=True)
    assert read[0] == 4 * size * dim
    assert min(read) >= 0


def test_a_calibration_finds_rates_of_all_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_rates, "_WORLDS", ((3000, 32, 20), (2500, 64, 20)))
    monkeypatch.setattr(tenant_rates, "_TENANTS", (300, 1200, 9000))
    monkeypatch.setattr(tenant_rates, "TENANT_SWEEPS", 2)
    monkeypatch.setattr(tenant_rates, "_COUNTED", 20)
    found = tenant_rates.measure_tenant_rates()
    assert found.keys() == set(SEARCHES)
    for kind, (own_s, relative) in found.items():
        assert own_s.keys() == RATES.query_s[kind].keys()
        assert min(own_s.values()) >= 0
        assert 0 < max(own_s.values()) < 1e-3
        assert relative > 0


def test_vectors_of_more_inner_dimensions_are_harder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, hard = np.random.default_rng(3), {}
    for inner in (4, 24):
        turn = rng.normal(size=(inner, 24))
        rows = (rng.normal(size=(3000, inner)) @ turn).astype(np.float32)
        np.save(tmp_path / f"{inner}.npy", rows)
        hard[inner] = sampled_hardness(rows, 0.9)
    assert hard[24] > 2 * hard[4]
    easy, harder = (
        price_ways(
            TenancyGoal(
                vectors=100_000, dim=24, tenants=2, selectivity=0.2, seen_by=2, hardness=factor
            ),
            RATES,
        )
        for factor in hard.values()
    )
    for less, more in zip(easy, harder, strict=True):
        assert (more.query_s.value > less.query_s.value) == (less.way != "plain scan")
    words = ("retrieve", "tenants", "plan", "100k x 24, 20 tenants", "--sample")
    with pytest.raises(SystemExit) as ended:
        main([*words, str(tmp_path / "24.npy")])
    assert not ended.value.code
    assert "times those of usual vectors" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(
            ["retrieve", "tenants", "plan", "100k x 9, 20 tenants", *words[4:], f"{tmp_path}/4.npy"]
        )
    assert ended.value.code == 2
    assert "3,000 vectors of 24 numbers" in capsys.readouterr().err


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"no way to share fits into 0\.01 GB: the smallest"):
        _plan(memory_bytes=1e7)
    with pytest.raises(InfeasibleError, match=r"may take .* ms are wanted"):
        _plan(latency_s=1e-7)
    for wrong in ({"seen_by": 101}, {"selectivity": 1.5}, {"locality": -1}, {"recall": 0}):
        with pytest.raises(ConfigError):
            _plan(**wrong)


def test_bytes_are_those_of_an_index() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(6000, 48)).astype(np.float32)
    index = ClusterTreeIndex(48)
    index.train(vectors)
    index.add(vectors)
    for tenant in range(30):
        index.grant(rng.choice(6000, 400, replace=False), str(tenant))
    goal = TenancyGoal(vectors=6000, dim=48, tenants=30, seen_by=2)
    said = _option(plan_tenancy(goal, RATES), "cluster tree").memory_bytes
    assert said.low < sum(index.memory_bytes().values()) < said.high


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_a_bitmap_admits_what_it_names_and_nothing_else(metric: str) -> None:
    rng = np.random.default_rng(1)
    vectors, queries = rng.normal(size=(1200, 12)), rng.normal(size=(7, 12))
    index = IVFFlat(12, nlist=20, metric=metric)  # pyright: ignore[reportArgumentType]
    index.train(vectors)
    index.add(vectors)
    seen = np.sort(rng.choice(1200, 150, replace=False))
    bitmap = index.admitted(seen)
    found = index.search_admitted(queries, 10, bitmap, nprobe=20)
    apart = ((queries[:, None] - vectors[seen]) ** 2).sum(axis=2)
    if metric == "ip":
        apart = -queries @ vectors[seen].T
    assert (found.ids == seen[np.argsort(apart, axis=1)[:, :10]]).all()
    assert found.stats.scanned == 7 * 150
    few = index.search_admitted(queries, 10, index.admitted(seen[:3]), nprobe=20)
    assert (few.ids[:, 3:] == -1).all()
    assert np.isin(index.search_admitted(queries, 5, bitmap, nprobe=2).ids, [*seen, -1]).all()
    with pytest.raises(DataError, match="bitmap of 3 bytes"):
        index.search_admitted(queries, 5, bitmap[:3])
    with pytest.raises(DataError, match="numbers 5 to 1200 of vectors"):
        index.admitted(np.array([5, 1200]))


def test_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    verb = ("retrieve", "tenants", "plan")
    goal = "100k x 128, 2000 tenants, recall .95, 1 GB"
    code, out, _ = run(*verb, goal)
    assert code == 0
    assert "plain scan" in out
    code, out, _ = run(*verb, goal, "--selectivity", "0.5", "--json")
    assert code == 0
    assert json.loads(out)["goal"]["own_vectors"] == 50_000
    for words, told in (
        (("100k x 128",), "name two or more"),
        ((goal, "--locality", "2"), "--locality is 2, but must be from 0 to 1"),
        ((goal, "--k", "0"), "--k is 0"),
        (("100k x 128, 5 tenants, seen by 9",), "seen by 9 of 5"),
    ):
        code, _, err = run(*verb, *words)
        assert code == 2
        assert told in " ".join(err.split())
    code, _, err = run(*verb, "100k x 128, 20 tenants, 10 MB")
    assert code == 1
    assert "no way to share fits" in err
    code, out, _ = run("plan", "retrieve", goal, "--json")
    assert code == 0
    assert json.loads(out)["tenancy"]["chosen"]["way"] == "plain scan"
