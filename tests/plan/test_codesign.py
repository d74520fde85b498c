import csv
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.catalog.fpga import fpga
from steelyard.cli.main import main
from steelyard.cost.vector_search import (
    FpgaStages,
    SearchPoint,
    StageOptions,
    queue_cycles,
    queue_levels,
)
from steelyard.errors import CapacityError, CatalogError, ConfigError, DataError
from steelyard.plan.retrieve import RecallTable, codesign

GOLDEN = Path(__file__).parents[1] / "golden" / "vector_search_designs.csv"
HEAD = "nlist,opq,k,recall_at_k,min_nprobe\n"


class _Made:
    """Stages of made numbers."""

    resources = ("area", "banks")
    used = np.array([1.0, 0.0])

    def __init__(self, stages, capacity, is_pipelined):
        self._stages, self.is_pipelined = stages, is_pipelined
        self.capacity = np.array(capacity, dtype=float)

    def stages(self, point):
        return self._stages


@pytest.mark.parametrize(
    "row", list(csv.DictReader(GOLDEN.read_text().splitlines())), ids=lambda row: row["k"]
)
def test_published_designs_are_found_again(row):
    point = SearchPoint(
        num_vectors=10**8,
        nlist=int(row["nlist"]),
        nprobe=int(row["nprobe"]),
        k=int(row["k"]),
        opq=row["opq"] == "1",
    )
    card = fpga(row["device"])
    best = codesign([point], FpgaStages(card, utilization=float(row["share"]))).designs[0]
    assert best.queries_per_s == pytest.approx(float(row["queries_per_s"]), rel=1e-3)
    if row["lut_share"]:
        # Shares are published to .01 %; of equally fast designs ours may take fewer.
        assert best.taken["lut"] / card.lut <= float(row["lut_share"]) / 100 + 1e-4


def made_stage(draw, name):
    count = draw(st.integers(1, 5))
    numbers = st.integers(0, 6)
    times = np.array([draw(st.integers(1, 6)) for _ in range(count)], dtype=float)
    takes = np.array([[draw(numbers), draw(numbers)] for _ in range(count)], dtype=float)
    configs = [{name: place} for place in range(count)]
    return StageOptions(name, times, takes, [{name: time} for time in times.tolist()], configs)


@given(st.data(), st.booleans())
def test_leaving_beaten_options_out_loses_nothing(data, is_pipelined):
    stages = [made_stage(data.draw, name) for name in ("a", "b", "c")]
    model = _Made(stages, (data.draw(st.integers(1, 14)), 9), is_pipelined)
    point = SearchPoint(num_vectors=1, nlist=1, nprobe=1, k=1)
    found = codesign([point], model)
    whole = []
    for picks in itertools.product(*(range(len(stage.times_s)) for stage in stages)):
        chosen = list(zip(stages, picks, strict=True))
        taken = model.used + sum(stage.resources[pick] for stage, pick in chosen)
        times = [stage.times_s[pick] for stage, pick in chosen]
        if (taken <= model.capacity).all():
            whole.append((max(times) if is_pipelined else sum(times), *taken))
    assert bool(found.designs) == bool(whole)
    if whole:
        best = found.designs[0]
        assert (1 / best.queries_per_s, *best.taken.values()) == pytest.approx(min(whole))
    else:
        assert found.rejected[point]


def test_a_published_latency_is_the_sum_of_six_stages():
    point = SearchPoint(num_vectors=10**8, nlist=8192, nprobe=17, k=10, opq=True)
    best = codesign([point], FpgaStages(fpga("U55C"), utilization=0.5)).designs[0]
    cycles = [round(took * 140e6) for took in best.stage_s.values()]
    # Jiang et al. 2023 (arXiv 2306.11182), cycles of the 9,523-query design.
    assert cycles == [4373, 14702, 8219, 12920, 14637, 8738]
    assert best.latency_s * 140e6 == pytest.approx(sum(cycles))
    assert best.bottleneck == "cell distances"


def test_levels_of_queues_end_in_one_or_are_not_built():
    assert queue_levels(10, 5000, 18) == (18, 1)
    assert queue_levels(100, 10, 72) is None
    assert queue_cycles(10, 4) == 3 + 13 + 12


@pytest.mark.parametrize(
    ("share", "error"), [(0.0, ConfigError), (1.5, ConfigError), (0.2, CapacityError)]
)
def test_shares_without_room_are_refused(share, error):
    with pytest.raises(error):
        FpgaStages(fpga("U55C"), utilization=share)


def test_what_the_constants_are_not_for_is_refused():
    point = SearchPoint(num_vectors=10, nlist=4, nprobe=1, k=1, dim=96)
    with pytest.raises(ConfigError, match="96 numbers"):
        FpgaStages(fpga("U280")).stages(point)
    with pytest.raises(CatalogError, match="no FPGA"):
        fpga("U9")
    with pytest.raises(ConfigError, match="5 of them scanned"):
        SearchPoint(num_vectors=10, nlist=4, nprobe=5, k=1)


@pytest.fixture
def recalls(tmp_path):
    path = tmp_path / "recalls.csv"
    path.write_text(
        HEAD + "1024,0,10,0.8,\n1024,0,10,0.7,4\n4096,1,10,0.7,9\n4096,0,100,0.95,\n", "utf-8"
    )
    return path


def test_a_goal_out_of_reach_says_the_ceiling(recalls):
    table = RecallTable.read(recalls)
    assert [point.nprobe for point in table.points(10**6, 10, 0.7)] == [4, 9]
    with pytest.raises(ConfigError, match=r"reaches 0\.8 of 10") as refused:
        table.points(10**6, 10, 0.8)
    assert "0.7" in refused.value.hint
    with pytest.raises(ConfigError, match="no index was measured"):
        table.points(10**6, 1, 0.8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nlist,k\n1,1\n", "no column 'opq'"),
        (HEAD + "4,0,1,0.5,x\n", "row 1 holds no numbers"),
        (HEAD + "4,0,1,0.5,1\n4,0,1,1.5,1\n", "row 2"),
    ],
)
def test_bad_recalls_are_named_by_row(tmp_path, text, said):
    path = tmp_path / "recalls.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(DataError, match=said):
        RecallTable.read(path)


def test_the_verb_writes_the_parameters_it_shows(recalls, tmp_path, capsys, monkeypatch):
    out = tmp_path / "design.json"
    words = f"plan codesign {recalls} --vectors 1M --k 10 --recall 0.7 --out {out} --json"
    monkeypatch.setattr("sys.argv", ["steelyard", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    shown, kept = json.loads(capsys.readouterr().out), json.loads(out.read_text())
    assert kept["stages"] == shown["stages"]
    assert kept["index"]["nlist"] in (1024, 4096)
    assert shown["simulated_queries_per_s"] == pytest.approx(
        kept["predicted_queries_per_s"], rel=0.2
    )
