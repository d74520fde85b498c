"""Starts of inference engines, by what was done ahead."""

import csv
from pathlib import Path

import numpy as np
import pytest

from steelyard.errors import ConfigError, DataError
from steelyard.sim.serverless import Platform, StartUp, run
from steelyard.sim.serverless.inference import MECHANISMS, STEPS, EngineStarts, published_starts
from steelyard.sim.serverless.workload import CloudFunction, Workload


def test_published_totals_are_kept_and_each_step_ahead_spares_time():
    starts = published_starts()
    totals = {name: sum(starts.mean_s(name).values()) for name in MECHANISMS}
    path = Path(__file__).parents[1] / "golden" / "deepflow_starts.csv"
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            assert totals[row["start"]] == pytest.approx(float(row["seconds"]))
    assert totals["cold"] > totals["cold-dram"] > totals["pre-warmed"] > totals["dram"]
    assert starts.mean_s("dram")["te_pre_load"] == 0


def test_draws_have_the_means_of_the_steps():
    starts = published_starts(spread=0.2)
    drawn = starts["cold"].sample(4000, seed=1)
    np.testing.assert_allclose(drawn.mean(axis=0), [*starts.mean_s("cold").values()], rtol=0.02)


def test_forks_are_flat_in_their_number_and_wait_for_a_busy_source():
    starts = published_starts(spread=0.0)
    alone = starts.ready_s("fork", 1, seed=0).max()
    assert alone == pytest.approx(sum(starts.mean_s("fork").values()))
    many = starts.ready_s("fork", 64, seed=0)
    assert (np.diff(many) > 0).all()
    pieces = 63 * 64 * 2**20 / starts.link_bytes_per_s
    assert many.max() - alone == pytest.approx(pieces, rel=0.02)
    busy = starts.ready_s("fork", 1, seed=0, busy=0.5).max()
    assert busy - alone == pytest.approx(starts.weights_bytes / starts.link_bytes_per_s)
    np.testing.assert_allclose(starts.ready_s("dram", 3, seed=0), alone, rtol=0.05)


def test_measured_starts_come_back_from_their_file(tmp_path):
    samples = {"cold": {step: [0.3, 0.1, 0.2] for step in STEPS}}
    starts = EngineStarts.of_samples(samples, source="here", weights_bytes=10.0)
    assert starts.mean_s("cold")["te_load"] == pytest.approx(0.2)
    starts.save(tmp_path / "starts.json")
    again = EngineStarts.load(tmp_path / "starts.json")
    assert again.mean_s("cold") == starts.mean_s("cold")
    assert (again.source, again.provenance) == ("here", "measured")
    with pytest.raises(ConfigError, match="'fork' are not known"):
        again["fork"]
    (tmp_path / "bad.json").write_text('{"start_ups": {"cold": {"te_load": 3}}}')
    with pytest.raises(DataError, match="no starts of an engine"):
        EngineStarts.load(tmp_path / "bad.json")


def test_unknown_mechanisms_and_steps_are_refused():
    part = published_starts()["cold"]
    words = {"source": "", "provenance": "assumed", "weights_bytes": 1.0}
    with pytest.raises(ConfigError, match="mechanisms of a start are warm"):
        EngineStarts(start_ups={"warm": part}, **words)
    short = StartUp({"te_load": part.parts["te_load"]})
    with pytest.raises(ConfigError, match="steps of the start 'cold'"):
        EngineStarts(start_ups={"cold": short}, **words)


def test_a_platform_starts_engines_this_way():
    from steelyard.operate.coldstart import FixedKeepAlive

    starts = published_starts(spread=0.0)
    waits = {}
    for name in ("cold", "dram"):
        platform = Platform(start_ups={"llm": starts[name]}, keep_alive=FixedKeepAlive())
        work = Workload(
            [CloudFunction(name="chat", runtime="llm")],
            np.array([0.0, 1000.0]), np.array([0, 0]), np.array([1.0, 1.0]), 2000.0,
        )  # fmt: skip
        waits[name] = run(platform, work, seed=0).wait_s
    np.testing.assert_allclose(waits["cold"], 42.12, rtol=1e-6)
    np.testing.assert_allclose(waits["dram"], 4.75, rtol=1e-6)


def test_steps_add_up_and_only_the_weights_of_forks_wait():
    starts = published_starts()
    for kind in ("cold", "fork"):
        steps = starts.steps_s(kind, 8, seed=3)
        assert steps.shape == (8, len(STEPS))
        assert steps.sum(axis=1) == pytest.approx(starts.ready_s(kind, 8, seed=3))
    load = STEPS.index("te_load")
    others = np.delete(starts.steps_s("fork", 8, seed=3), load, axis=1)
    assert (others == np.delete(starts["fork"].sample(8, 3), load, axis=1)).all()
    assert starts.steps_s("fork", 8, seed=3, busy=0.5)[:, load].max() > steps[:, load].max()
