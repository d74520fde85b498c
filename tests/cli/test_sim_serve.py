"""`steelyard sim serve`: a fleet by options, and what is refused."""

import json

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.serve.routes.heat_map import HeatMap
from steelyard.sim.serverless.inference import STEPS, EngineStarts

MADE = ["sim", "serve", "--rate", "4 request/s", "--prompt", "300", "--output", "20", "--json"]


def code_of(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code or 0


def answer(capsys, *words):
    assert code_of([*MADE, *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_fleet_is_replayed(capsys, tmp_path):
    found = answer(capsys, "--limit", "40", "--routing", "least", "--both", "2")
    assert found["requests"] == 40
    assert [item["role"] for item in found["instances"]] == ["both", "both"]
    assert found["instance_hours"] == pytest.approx(2 * found["span_s"] / 3600)
    assert found["seconds"]["completion"]["p99"] >= found["seconds"]["ttft"]["p50"] > 0


def test_a_map_from_a_file_sends_prompts_apart(capsys, tmp_path):
    path = tmp_path / "map.json"
    HeatMap([0.1, 0.2], [100.0, 1000.0], [0.01, 1.0], np.ones((2, 2, 2))).save(path)
    apart = ["--both", "1", "--prefill", "1", "--decode", "1", "--heat-map", str(path)]
    found = answer(capsys, "--limit", "80", "--routing", "pd-aware", *apart)
    assert found["requests"] == 30  # 50 taught the lengths
    assert [item["prompts"] for item in found["instances"]] == [0, 30, 0]


def test_starts_from_a_file_wake_instances_and_replace_the_dead(capsys, tmp_path):
    samples = {"dram": {step: [1.0] for step in STEPS}}
    path = tmp_path / "starts.json"
    EngineStarts.of_samples(samples, source="test", weights_bytes=1.0).save(path)
    base = ("--limit", "40", "--routing", "rotation", "--both", "2", "--starts", str(path))
    asleep = answer(capsys, *base, "--keep-alive", "20 s")
    assert asleep["cold_starts"] == 1
    assert asleep["seconds"]["ttft"]["p99"] > 4.0
    killed = answer(capsys, *base, "--dies", "3 s")
    assert (killed["cold_starts"], killed["requests"]) == (1, 40)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tensor", "0"], "--tensor is 0"),
        (["--both", "0", "--prefill", "1", "--routing", "least"], "roles prefill"),
        (["--model", "llama-3-70b", "--routing", "least"], "more accelerators with --tensor"),
        (["--keep-alive", "5 s", "--mechanism", "fork", "--routing", "least"], "always runs"),
        (["--limit", "20"], "teach the lengths"),
        (["--mechanism", "warm", "--dies", "1 s", "--routing", "least"], "'warm' are not known"),
        (["--rate", "0"], "--rate must be above 0"),
    ],
)
def test_bad_input_is_refused(capsys, tmp_path, words, said):
    path = tmp_path / "map.json"
    HeatMap([0.1], [100.0], [0.1], np.ones((1, 1, 1))).save(path)
    made = MADE[:2] + MADE[4:] if "--rate" in words else MADE
    assert code_of([*made, "--heat-map", str(path), *words]) != 0
    assert said in " ".join(capsys.readouterr().err.split())
