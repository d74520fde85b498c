"""`plan layout`: the ranking, its doubt, answers, exports and refusals."""

import json
import re

import numpy as np
import pytest

from steelyard import catalog
from steelyard.cli.plan.layout import layout
from steelyard.cli.plan.space_options import SpaceOptions
from steelyard.errors import ConfigError, SteelyardError
from steelyard.plan.exports import read_megatron
from steelyard.plan.machines import machines_of
from steelyard.plan.run_advice import advise_run, plan_of
from steelyard.runs.pareto import pareto

_LONG = {"model": "gpt2", "cluster": "Selene", "nodes": 4, "global_batch": 1}
_LONG |= {"sequence_length": 8192}
_ASKED = {"model": "gpt3-6.7b", "cluster": "Selene", "nodes": 4}


def test_the_ranking_names_its_doubt_and_its_probe(capsys, tmp_path):
    layout(**_ASKED, top=3, chart=tmp_path / "page.html")
    text = capsys.readouterr().out
    assert "32 x A100-SXM4-80GB of Selene" in text
    assert "kernels" in text
    assert re.search(r"fastest in \d+ %", text)
    assert re.search(r"narrows from \d+ % to \d+ %", text)
    assert "Layouts that fit" in (tmp_path / "page.html").read_text()
    layout(**_ASKED, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["searched"] >= found["fit"] >= len(found["layouts"])
    best, low, high = found["layouts"][0]["step_s"]
    assert low < best < high
    assert sum(item["wins"] for item in found["layouts"]) <= 1 + 1e-9
    assert found["lost_usd"] > 0
    # A probe that takes 1.5 times its forecast slows the ranking, and narrows it.
    layout(**_ASKED, measured=f"{1.5 * found['probe']['forecast_s']} s", json=True)
    answered = json.loads(capsys.readouterr().out)
    slower, lower, higher = answered["layouts"][0]["step_s"]
    assert slower > best
    assert higher / lower < high / low
    layout(**_ASKED, measured="2 s")
    assert "measured, the first one's time is" in capsys.readouterr().out


def test_the_first_layout_is_exported(capsys):
    layout(**_ASKED, json=True)
    first = json.loads(capsys.readouterr().out)["layouts"][0]
    layout(**_ASKED, export="megatron")
    read = read_megatron(capsys.readouterr().out)
    for name in ("data", "tensor", "pipeline"):
        assert getattr(read.layout, name) == first[name]
    assert (read.micro_batch, read.accumulation) == (first["micro_batch"], first["accumulation"])


def test_a_slow_probe_makes_the_plan_slower_and_dearer(capsys):
    machines = machines_of(cluster="Selene", nodes=4)
    advice = advise_run(catalog.architecture_by_name("gpt3-6.7b"), machines, tokens=1e10)
    probe = advice.probes()[0]
    slower = advice.answered(2 * probe.forecast_s)
    before, after = (plan_of(item, machines) for item in (advice, slower))
    for name in ("train.step_time", "train.total_time", "run.cost"):
        told = before.forecast(name)
        assert told.low < told.value < told.high
        assert after.forecast(name).value > told.value
    # The plan's time is that of its steps, and close to that of the tokens asked for.
    total = before.forecast("train.total_time").value
    assert total == pytest.approx(
        before.choice["steps"] * before.forecast("train.step_time").value, rel=1e-9
    )
    assert total == pytest.approx(advice.run_s, rel=0.01)
    # Money of the run rises with its time.
    assert slower.run_usd / advice.run_usd == pytest.approx(slower.run_s / advice.run_s, rel=0.2)
    layout(model="gpt3-6.7b", accelerator="A100-SXM4-80GB", count=32, export="skypilot")
    assert re.search(r"#   run.cost: \$", capsys.readouterr().out)


def test_what_cannot_be_is_said(capsys):
    assert layout(model="gpt3-175b", cluster="Selene", nodes=1, json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["infeasible"].startswith("memory: gpt3-175b needs at least")
    assert "nodes" in told["changes"][0]["name"]
    whole = SpaceOptions(context=1)
    assert layout(**_LONG, space=whole, json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert "no split of 32 accelerators divides 1 " in told["infeasible"]
    assert "with context 1" in told["infeasible"]
    assert re.match(r"context \d+ in place of 1", told["changes"][0]["name"])
    with pytest.raises(SteelyardError, match=r"(?s)--top is 0.*--sequence-length is 0"):
        layout(**_ASKED, top=0, sequence_length=0)
    with pytest.raises(ConfigError, match="tokens -1"):
        advise_run(
            catalog.architecture_by_name("gpt2"), machines_of(cluster="Selene", nodes=1), tokens=-1
        )
    with pytest.raises(ConfigError, match="this-machine has one"):
        layout(model="gpt2", cluster="this-machine")
    with pytest.raises(ConfigError, match="--measured"):
        layout(**_ASKED, measured="fast")
    assert capsys.readouterr().out == ""


def test_the_front_holds_what_none_beats():
    rng = np.random.default_rng(5)
    across, up = rng.uniform(1, 9, (2, 60)).round(1)
    spec = pareto(
        [str(place) for place in range(60)],
        across.tolist(),
        up.tolist(),
        titles=("time", "memory"),
        units=("s", "byte"),
        title="two costs",
    )
    rows = {row["name"]: row for data in spec["datasets"].values() for row in data}
    for place in range(60):
        beaten = ((across <= across[place]) & (up <= up[place])).sum() > 1
        is_on = rows[str(place)]["kind"] == "on the front"
        assert is_on != beaten or (across == across[place]).sum() > 1
