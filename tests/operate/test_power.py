"""Policies of a row decision by decision, the oracle, the picture and the verb."""

import json

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.errors import ConfigError
from steelyard.operate.power import (
    all_cap,
    compare_policies,
    no_cap,
    one_threshold,
    oracle,
    polca,
    replay_scenario,
    uncapped,
)
from steelyard.operate.power.pictures import highest_day, row_day
from steelyard.sim.control import Observation, Reading
from steelyard.sim.power import BRAKE, CLOCKS, METER, RowScenario

HIGH, LOW = CLOCKS
SMALL = RowScenario(servers=20, added=7, days=0.1, load=0.9, seed=2)


def decisions(policy, readings):
    """Return what a policy sends at each (time, share of the budget), without reasons."""
    found = []
    for time_s, share in readings:
        seen = Observation({METER: Reading(METER, share * 1000.0, time_s)})
        sent = policy.decide(time_s, seen)
        found.append({item.target: round(item.value, 3) for item in sent})
    return found


def test_polca_caps_low_priority_first_and_high_priority_once_that_has_landed():
    sent = decisions(
        polca(1000.0),
        [(0, 0.79), (2, 0.81), (4, 0.90), (6, 0.90), (44, 0.90), (46, 0.90), (90, 0.95)],
    )
    assert sent == [{}, {LOW: 0.904}, {LOW: 0.787}, {}, {HIGH: 0.926}, {}, {}]


def test_polca_goes_back_high_priority_first_and_with_hysteresis():
    policy = polca(1000.0)
    decisions(policy, [(0, 0.95), (40, 0.95)])
    assert policy.level == 3
    sent = decisions(
        policy,
        [(60, 0.80), (80, 0.85), (82, 0.83), (84, 0.83), (122, 0.83), (162, 0.76), (164, 0.74)],
    )
    assert sent == [{}, {}, {HIGH: 1.0}, {}, {LOW: 0.904}, {}, {LOW: 1.0}]


def test_the_brake_is_for_power_above_the_budget_and_ends_once_it_has_landed():
    policy = no_cap(1000.0)
    sent = decisions(policy, [(0, 1.0), (2, 1.01), (4, 0.5), (7, 0.9), (9, 0.83)])
    assert sent == [{}, {BRAKE: 1.0}, {}, {}, {BRAKE: 0.0}]


def test_one_threshold_caps_one_priority_and_all_cap_both():
    assert decisions(one_threshold(1000.0), [(0, 0.9)]) == [{LOW: 0.787}]
    assert decisions(all_cap(1000.0), [(0, 0.9)]) == [{LOW: 0.787, HIGH: 0.787}]


def test_a_power_that_is_not_known_changes_nothing():
    assert polca(1000.0).decide(0.0, Observation()) == []


def test_settings_are_sent_again_where_they_may_be_lost():
    policy = polca(1000.0, repeat_s=300.0)
    sent = decisions(policy, [(0, 0.81), (298, 0.81), (300, 0.81), (302, 0.81)])
    assert sent[2] == {LOW: 0.904, HIGH: 1.0, BRAKE: 0.0}
    assert sent[1] == sent[3] == {}


@pytest.mark.parametrize("make", [polca, one_threshold, all_cap, no_cap])
def test_readings_that_a_policy_calls_quiet_change_nothing(make):
    rng = np.random.default_rng(0)
    policy = make(1000.0)
    for tick in range(2000):
        now_s, share = 2.0 * tick, float(rng.uniform(0.7, 1.02))
        low_w, high_w, until_s = policy.quiet(now_s)
        sent = decisions(policy, [(now_s, share)])[0]
        if low_w <= share * 1000.0 <= high_w and now_s < until_s:
            assert sent == {}


def test_polca_lowers_the_peak_and_slows_low_priority_more():
    answer = compare_policies(SMALL, ("polca", "no cap", "oracle"))
    rows = {item["policy"]: item for item in answer.rows()}
    assert rows["polca"]["brakes"] <= rows["no cap"]["brakes"]
    assert rows["polca"]["peak"] < rows["nothing"]["peak"]
    assert rows["polca"]["low_p50_longer"] > rows["polca"]["high_p50_longer"] >= 0
    assert rows["nothing"]["low_p50_longer"] == 0
    assert rows["oracle"]["over_s"] <= rows["nothing"]["over_s"]


def test_an_oracle_caps_only_around_power_above_the_budget():
    free = replay_scenario(SMALL, uncapped())
    planned = oracle(free)
    share = free.power_w / SMALL.row().budget_w
    for start, end, low in zip(
        planned.times_s, [*planned.times_s[1:], 1e9], planned.low, strict=True
    ):
        first, last = int(start // 2), int(min(end // 2, len(share)))
        if low < 1:
            assert share[max(first - 21, 0) : last + 22].max() > 0.99
        else:
            assert share[first:last].max(initial=0) <= 0.99


def test_a_day_is_drawn_with_its_thresholds_and_clocks():
    answer = compare_policies(SMALL, ("polca",))
    day = highest_day(answer.free)
    spec = row_day(answer.replays["polca"], day=day, thresholds={"T1": 0.8}, free=answer.free)
    text = json.dumps(spec)
    assert day == 0
    assert all(words in text for words in ("without caps", "T1", "budget", "low priority"))


def test_the_verb_prints_policies_and_writes_its_page(capsys, tmp_path):
    words = ["sim", "power", "--servers", "6", "--added", "3", "--days", "0.05"]
    with pytest.raises(SystemExit) as done:
        main([*words, "--policy", "polca", "--json", "--report", str(tmp_path / "row.html")])
    assert done.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert [item["policy"] for item in found["policies"]] == ["polca", "nothing"]
    assert found["servers"]["high"] + found["servers"]["low"] == 9
    assert "mean of ten minutes" in (tmp_path / "row.html").read_text()


def test_the_verb_takes_requests_from_a_trace(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,800,100\n20,900,120\n50,100,40\n")
    words = ["sim", "power", "--servers", "4", "--days", "0.02", "--trace", str(path)]
    with pytest.raises(SystemExit) as done:
        main([*words, "--policy", "no-cap", "--json"])
    assert done.value.code == 0
    rows = json.loads(capsys.readouterr().out)["policies"]
    assert 60 <= rows[0]["high_requests"] + rows[0]["low_requests"] <= 70


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--policy", "none"], "--policy is 'none'"),
        (["--t1", "0.9"], "t1 < t2"),
        (["--days", "0"], "--days"),
        (["--high-share", "2", "--trace", "missing.csv"], "--high-share"),
        (["--model", "llama-2-70b", "--tensor-parallel", "3"], "was not measured"),
    ],
)
def test_the_verb_refuses_what_cannot_be(capsys, words, told):
    with pytest.raises(SystemExit) as done:
        main(["sim", "power", *words])
    assert done.value.code == 2
    assert told in capsys.readouterr().err


def test_unknown_policies_are_refused():
    with pytest.raises(ConfigError, match="'polka'"):
        compare_policies(SMALL, ("polka",))
