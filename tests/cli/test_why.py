"""`--why`: every printed chain is redone by evaluating what is printed, number by number."""

import json
import math

import pytest
from tests.cli.arithmetic import evaluate

from steelyard.catalog import Calibration, MatmulPoint, store_calibration
from steelyard.cli.main import main
from steelyard.units import pretty

CHAINS = {
    "money": "plan train --budget $5,000 --accelerator H100-SXM5-80GB --count 8",
    "stages": "plan train --budget 1e25FLOP --cluster Selene --model gpt3-175b --deadline 9years",
    "experts": "plan train --budget 1e25FLOP --cluster Selene --model mixtral-8x22b --tensor 2",
    "moved": "plan train --budget 1e23FLOP --cluster Selene --nodes 8 --model gpt3-6.7b "
    "--offload any --pipeline 4 --recompute full",
    "parts": "plan train --budget 1e25FLOP --cluster Llama3-24k-RoCE --model llama-3.1-405b "
    "--sequence-length 131072 --context 16 --deadline 9years",
    "amortized": "plan train --budget 1e22FLOP --cluster LEONARDO-Booster --nodes 4",
    "adapters": "plan fit 70B --use lora --weights int4 --accelerator H100-SXM5-80GB",
    "sharded": "plan fit llama-3.1-8b --use train --weights bf16 --accelerator H100-SXM5-80GB",
    "split": "plan fit llama-3.1-70b --use serve --context 8k --users 4 --weights bf16",
    "latent": "plan fit deepseek-v3 --use serve --weights fp8 --accelerator B200-SXM-180GB",
    "lacking": "plan fit llama-3.1-405b --use serve --weights bf16 --accelerator L40S",
    "rented": "plan which --model llama-3.1-8b --tokens 300B",
    "deployed": "plan which --model llama-3.1-70b --rate 20 --tpot 100ms",
    "step": "cost train --model gpt2-xl --machine L40S --micro-batch 4 --recompute full",
    "own run": "plan train --budget 2h --cluster this-machine --model 30M",
    "own answer": "plan fit 1B --accelerator this-machine --use serve",
    "decoded": "cost serve --model llama-3.1-8b --machine L40S --batch 4 --price 2USD",
}
HEADLINES = {
    "plan train": ("run_flops", "step_time", "total_memory", "total_time", "run_cost"),
    "plan fit": ("weights", "total_memory", "offered_memory"),
    "plan which": ("energy", "run_cost"),
    "cost train": ("step_time", "total_memory", "usd_per_million"),
    "cost serve": ("tokens_per_s", "total_memory", "usd_per_million"),
}


STATED = {
    "run.cost": "run_cost",
    "run.energy": "energy",
    "train.total_time": "total_time",
    "run.duration": "duration",
    "train.step_time": "step_time",
    "train.flops": "run_flops",
    "train.mfu": "mfu",
    "train.peak_memory": "total_memory",
    "plan.memory_per_accelerator": "total_memory",
    "serve.throughput": "tokens_per_s",
    "serve.tpot": "time_per_token",
    "eval.loss": "loss",
}
"""What the answer calls the results of steps."""


@pytest.fixture
def calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    sizes = {"fp32": ((64, 2e10), (1024, 9e10)), "bf16": ((64, 1e10), (1024, 2e11))}
    points = [
        MatmulPoint(dtype=dtype, m=size, n=size, k=size, flops_per_s=rate, spread=0.05)
        for dtype, rates in sizes.items()
        for size, rate in rates
    ]
    store_calibration(
        Calibration(
            description="made up",
            num_threads=2,
            memory_bytes=16e9,
            matmul=tuple(points),
            stream_bytes_per_s=2e10,
            cache_bytes_per_s=8e10,
            elementwise_bytes_per_s=5e9,
            gather_bytes_per_s=2e9,
            disk_read_bytes_per_s=0,
            disk_write_bytes_per_s=0,
            link_latency_s=1e-5,
            link_bytes_per_s=2e9,
            launch_s=5e-6,
            noise=0.05,
        )
    )


def answer(capsys, words, *more):
    with pytest.raises(SystemExit):
        main([*words.split(), "--why", *more])
    return capsys.readouterr().out


def printed(out):
    """Return name, formula, numbers and result of every step that stands in the output."""
    lines = out[out.index("formula, numbers, result, source") :].splitlines()[1:]
    table = lines[
        : next(place for place, line in enumerate(lines) if line.startswith("x is times"))
    ]
    for place in range(0, len(table), 4):
        name, formula = table[place].split(maxsplit=1)
        numbers, result = (line.strip().removeprefix("= ") for line in table[place + 1 : place + 3])
        assert table[place + 3].strip().startswith("[")
        yield name, formula, numbers, result


def agrees(value, step, shown):
    """Say whether a redone value is the shown one, whose third digit six digits may leave open."""
    close = math.isclose(value, step["value"], rel_tol=1e-4)
    return shown == pretty(step["value"], step["unit"]) and (
        close or pretty(value, step["unit"]) == shown
    )


def check_answer(known, first):
    """Check that the chain's results are the figures that the answer states."""
    stated = {item["quantity"]: item["value"] for item in first.get("forecasts", [])}
    for quantity, name in STATED.items():
        if name in known and stated.get(quantity) is not None:
            assert known[name] == pytest.approx(stated[quantity], rel=1e-6), quantity
    if "memory" in first:
        assert known["total_memory"] == pytest.approx(first["memory"]["total"])
        assert known.get("usd_per_million") == first["usd_per_million"]
        if first["tokens_per_s"]:
            assert known["tokens_per_s"] == pytest.approx(first["tokens_per_s"]["value"])


@pytest.mark.parametrize("words", CHAINS.values(), ids=CHAINS)
def test_a_printed_chain_can_be_redone(capsys, words, calibrated):
    shown = list(printed(answer(capsys, words)))
    found = json.loads(answer(capsys, words, "--json"))
    first = next(item for item in found if "why" in item) if isinstance(found, list) else found
    steps = first["why"]
    assert [name for name, *_ in shown] == [step["name"] for step in steps]
    # The memory of this package's own engine is counted whole: its weights are a number there.
    named = {step["name"] for step in steps}.union(*(step["numbers"] for step in steps))
    assert {*HEADLINES[" ".join(words.split()[:2])]} <= named
    known = {}
    for (_, formula, numbers, result), step in zip(shown, steps, strict=True):
        assert (formula, numbers) == (step["formula"], step["filled"])
        assert agrees(evaluate(numbers), step, result), step
        # A number that an earlier step gave is that step's result.
        for name in known.keys() & step["numbers"]:
            assert step["numbers"][name] == pytest.approx(known[name], rel=1e-6), step
        known[step["name"]] = step["value"]
    check_answer(known, first)


@pytest.mark.parametrize("text", ["__import__('os')", "2 ** 3", "1 +", "abc", "2 (3)"])
def test_the_checker_takes_arithmetic_only(text):
    with pytest.raises((AssertionError, ValueError)):
        evaluate(text)
