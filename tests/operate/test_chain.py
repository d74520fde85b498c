"""From requests to carbon: levels that add up, scalers beside each other, and the verb."""

import json

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.cost.energy import J_PER_KWH
from steelyard.errors import ConfigError
from steelyard.operate.power import ChainScenario, ScalingRules, run_chain, scale_row
from steelyard.operate.power.chain_pictures import chain_day
from steelyard.sim.power import RowRequests

SMALL = ChainScenario(servers=8, days=0.125, seed=3, startup_s=60.0)


def said(words):
    """Run the command line and return its exit code."""
    with pytest.raises(SystemExit) as stopped:
        main(words)
    return stopped.value.code


@pytest.fixture(scope="module")
def chain():
    return run_chain(SMALL)


def test_every_level_adds_up_to_the_next(chain):
    for run in chain.runs.values():
        assert max(run.gaps().values()) < 1e-9
        assert sum(item.row_j for item in run.kinds) == pytest.approx(
            run.meters.request_j.sum(), rel=1e-9
        )
        assert sum(item.usd for item in run.kinds) == pytest.approx(run.usd, rel=1e-9)


def test_an_answer_by_hand(chain):
    run = chain.runs["all on"]
    spent, pue = run.meters.spent_j, run.site.column("grid_w") / run.site.column("it_w")
    chat = run.kinds[2]
    assert chat.kind == "chat"
    idle_j = sum(
        float(row[3] + row[4]) * float(rate[0]) for row, rate in zip(spent, pue, strict=True)
    )
    own_j = sum(float(row[2]) * float(rate[0]) for row, rate in zip(spent, pue, strict=True))
    share = spent[:, 2].sum() / spent[:, :3].sum()
    assert chat.grid_j == pytest.approx(own_j + share * idle_j, rel=1e-9)
    assert chat.j_per_answer == chat.grid_j / chat.finished


def test_carbon_by_hour_is_that_of_the_kinds_own_energy(chain):
    run = chain.runs["hpa"]
    grams = run.account.carbon_kg * 1e3 / run.rows
    by_hour = sum(item.carbon_g_by_hour for item in run.kinds)
    assert (by_hour < grams).all()
    rest = run.meters.spent_j[:, -2:].sum() / run.meters.meter_j
    assert by_hour.sum() == pytest.approx(grams.sum() * (1 - rest), rel=0.02)


def test_scalers_keep_fewer_servers_and_answer_the_same_requests(chain):
    figures = {name: run.figures() for name, run in chain.runs.items()}
    fewest = figures["oracle"]
    assert fewest["server_hours"] < figures["all on"]["server_hours"]
    assert fewest["grid_j"] < figures["all on"]["grid_j"]
    assert figures["all on"]["starts"] == 0 < figures["hpa"]["starts"]
    worked = {name: sum(item.requests for item in run.kinds) for name, run in chain.runs.items()}
    assert len(set(worked.values())) <= 3
    assert min(worked.values()) > 0.97 * max(worked.values())


def test_kinds_without_requests_have_no_energy():
    requests = RowRequests.of([0.0, 60.0], [512, 512], [64, 64], [0, 1])
    chain = run_chain(SMALL, scalers=("all on",), requests=requests, kinds=("a", "b"))
    first, second = chain.runs["all on"].kinds
    assert (first.finished, second.finished) == (2, 0)
    assert second.grid_j == 0
    assert np.isnan(second.j_per_answer)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"days": 0.3}, "quarters of an hour"),
        ({"servers": 1000}, "feeds racks of"),
        ({"startup_s": 0.0}, "startup_s"),
        ({"target": 1.5}, "target"),
        ({"start_day": 400}, "start_day"),
    ],
)
def test_what_cannot_be_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        options = {"servers": 8, "days": 0.125} | given
        run_chain(ChainScenario(**options), scalers=("all on",))


def test_scalers_that_are_unknown_or_not_told_are_refused():
    row, requests = SMALL.row_scenario().row(), SMALL.row_scenario().requests()
    with pytest.raises(ConfigError, match="no scaler 'magic'"):
        scale_row("magic", row, requests, ScalingRules(), duration_s=900.0)
    with pytest.raises(ConfigError, match="has to know"):
        scale_row("oracle", row, requests, ScalingRules(), duration_s=900.0)


def test_a_day_is_drawn_with_servers_power_and_carbon(chain):
    assert len(chain_day(chain)["vconcat"]) == 3


def test_the_verb_prints_levels_and_answers(capsys, tmp_path):
    words = ["sim", "chain", "--servers", "8", "--days", "0.0625", "--scaler", "hpa"]
    assert said([*words, "--report", str(tmp_path / "chain.html")]) == 0
    printed = capsys.readouterr().out
    assert "largest gap" in printed
    assert "g an answer" in printed
    assert (tmp_path / "chain.html").stat().st_size > 10_000
    assert said([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["scalers"][0]
    kinds_j = sum(item["grid_j"] for item in found["kinds"])
    assert kinds_j == pytest.approx(found["grid_j"])
    assert found["carbon_g"] / found["grid_j"] * J_PER_KWH > 10


def test_the_verb_takes_a_trace_and_accounts_by_client(capsys, tmp_path):
    trace = tmp_path / "trace.csv"
    rows = [
        f"{second},{400 + second % 7},{60 + second % 5},{'ab'[second % 3 > 0]}"
        for second in range(0, 900, 8)
    ]
    trace.write_text("arrival_s,input_tokens,output_tokens,client\n" + "\n".join(rows) + "\n")
    words = ["sim", "chain", "--servers", "4", "--days", "0.03125", "--scaler", "all-on"]
    assert said([*words, "--trace", str(trace), "--json"]) == 0
    kinds = json.loads(capsys.readouterr().out)["scalers"][0]["kinds"]
    assert {item["kind"] for item in kinds} == {"a", "b"}
    assert all(item["finished"] > 0 for item in kinds)


def test_a_row_that_cannot_answer_all_says_so(capsys, tmp_path):
    trace = tmp_path / "trace.csv"
    rows = [f"{second / 4},800,200" for second in range(3600)]
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    words = ["sim", "chain", "--servers", "4", "--days", "0.03125", "--scaler", "all-on"]
    assert said([*words, "--trace", str(trace)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "of 10,800 requests were answered" in printed and "--servers" in printed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--scaler", "magic"], "--scaler is 'magic'"),
        (["--datacenter", "nowhere"], "nowhere"),
        (["--high-share", "2", "--trace", "none.csv"], "--high-share is 2"),
    ],
)
def test_the_verb_refuses_what_cannot_be(capsys, words, told):
    assert said(["sim", "chain", "--servers", "8", "--days", "0.03125", *words]) == 2
    assert told in capsys.readouterr().err
