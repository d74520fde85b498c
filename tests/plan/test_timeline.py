"""`steelyard plan timeline`: a simulated step beside the closed forms."""

import json

import pytest

from steelyard import catalog
from steelyard.cli.main import main
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError
from steelyard.plan.timeline import plan_timeline
from steelyard.sim.step.training import TrainingStep

PIPELINE = ("--tensor", "8", "--pipeline", "8", "--micro-batches", "16")


def run(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["plan", "timeline", *arguments])
    return int(caught.value.code or 0)


def made(**how):
    cluster = catalog.cluster("Selene")
    machine = Machine.from_accelerator(catalog.accelerator(cluster.accelerator), cluster=cluster)
    arch = catalog.architecture_by_name("gpt3-175b")
    settings = {"sequence_length": 2048, "tensor": 8, "pipeline": 8, "num_micro_batches": 16} | how
    return plan_timeline(TrainingStep(arch=arch, machine=machine, **settings))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_simulation_is_near_the_closed_forms(schedule, recompute):
    found = made(schedule=schedule, recompute=recompute)
    assert found.time_s == pytest.approx(found.cost.time_s, rel=0.05)
    assert found.idle.min() == pytest.approx(found.closed_idle, abs=0.03)
    assert sum(found.path_s.values()) == pytest.approx(found.time_s, rel=1e-6)
    # The closed forms leave out what a split backward pass keeps for the gradients of weights: as
    # much as all else where activations are made again.
    if schedule == "zero-bubble" and recompute:
        return
    most = found.activation_bytes.max()
    assert most == pytest.approx(found.cost.memory.activations, rel=0.15)


def test_chunks_shorten_the_bubble_and_zero_bubble_shortens_it_more():
    plain, chunked = made(), made(num_chunks=2)
    split = made(schedule="zero-bubble")
    assert chunked.idle.min() < plain.idle.min() - 0.05
    assert split.time_s < chunked.time_s < plain.time_s
    assert chunked.activation_bytes.max() > plain.activation_bytes.max()


def test_the_command_prints_both_and_writes_trace_and_picture(capsys, tmp_path):
    trace, chart = tmp_path / "step.json", tmp_path / "step.html"
    where = ("--model", "gpt3-175b", "--cluster", "Selene", "--trace", str(trace))
    how = ("--schedule", "zero-bubble", "--chart", str(chart))
    assert run(*where, *PIPELINE, *how) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "simulated closed form" in text and "1f1b would take" in text
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"forward", "backward_weight", "update"} <= names
    assert "backward weight" in chart.read_text()
    assert run(*where[:4], *PIPELINE, "--data", "4", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["accelerators"] == 256 and len(plain["idle"]) == 8
    assert plain["closed"]["time_s"] == pytest.approx(plain["time_s"], rel=0.05)


def test_each_switch_changes_the_step(capsys):
    where = ("--model", "megascale-175b", "--cluster", "MegaScale", *PIPELINE, "--chunks", "6")
    where += ("--data", "4", "--load-s", "0.2", "--json")

    def seconds(*switches):
        assert run(*where, *switches) == 0
        plain = json.loads(capsys.readouterr().out)
        return plain["time_s"], plain["straggling_s"]

    switches = ("--eager", "--overlap", "none")
    spent = [seconds(*switches)[0]]
    for more in (("--parallel-block",), ("--window", "704")):
        switches += more
        spent.append(seconds(*switches)[0])
    for names in (
        "tensor",
        "tensor,pipeline",
        "tensor,pipeline,data",
        "tensor,pipeline,data,loader",
    ):
        switches = (*switches[:2], names, *switches[3:])
        spent.append(seconds(*switches)[0])
    spent.append(seconds(*switches[1:])[0])
    assert spent == sorted(spent, reverse=True) and len(set(spent)) == len(spent)
    paid, mean = seconds(*switches[1:], "--contention", "0.2", "--stragglers", "0.5")
    assert spent[-1] < paid < mean
    assert run(*where[:-1], "--stragglers", "0.005", "--slowdown", "0.3") == 0
    assert "MFU with slow machines" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cluster", "Selene", "--pipeline", "0", "--data", "-1"), ["--pipeline is 0", "--data"]),
        ((), ["--cluster or --accelerator"]),
        (("--cluster", "Selene", "--data", "99999"), ["99,999", "Selene has"]),
        (("--accelerator", "L40S", "--pipeline", "7"), ["96 layers", "7 stages"]),
        (("--accelerator", "L40S", "--tensor", "7"), ["96 heads", "7 tensor-parallel"]),
        (("--accelerator", "L40S", "--micro-batches", "400000"), ["at most 300,000"]),
        (
            ("--accelerator", "L40S", "--micro-batches", "20000", "--chart", "a.svg"),
            ["--chart would have 40,000 bars"],
        ),
        (("--accelerator", "L40S", "--chart", "a.pdf"), ["a.pdf"]),
        (("--accelerator", "L40S", "--overlap", "none,data"), ["'none,data'", "must be none, or"]),
        (("--accelerator", "L40S", "--overlap", "nothing"), ["'nothing'", "tensor, pipeline"]),
        (("--accelerator", "L40S", "--window", "-1"), ["--window is -1"]),
        (
            ("--accelerator", "L40S", "--stragglers", "2", "--contention", "-1", "--load-s", "-1"),
            ["--stragglers is 2", "--contention is -1", "--load-s is -1"],
        ),
        (
            ("--accelerator", "L40S", "--chunks", "2", "--schedule", "gpipe"),
            ["'gpipe' with 2 chunks"],
        ),
        (
            ("--accelerator", "L40S", "--chunks", "2", "--pipeline", "4", "--micro-batches", "3"),
            ["3 micro-batches in 2 chunks do not divide by 4"],
        ),
    ],
)
def test_errors_speak_of_options(capsys, arguments, words):
    assert run("--model", "gpt3-175b", *arguments) == 2
    text = " ".join(capsys.readouterr().err.split())
    for word in words:
        assert word in text


def test_only_dense_decoders_are_simulated():
    cluster = catalog.cluster("Selene")
    machine = Machine.from_accelerator(catalog.accelerator(cluster.accelerator), cluster=cluster)
    mixture = catalog.architecture_by_name("mixtral-8x7b")
    with pytest.raises(ConfigError, match="no dense decoder"):
        TrainingStep(arch=mixture, machine=machine, sequence_length=2048)
    dense = catalog.architecture_by_name("gpt3-175b")
    with pytest.raises(ConfigError, match=r"micro_batch is 0.*\n.*data is 0"):
        TrainingStep(arch=dense, machine=machine, sequence_length=2048, micro_batch=0, data=0)
