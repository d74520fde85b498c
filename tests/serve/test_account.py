import json
import os

import pytest
from tests.made_rates import made_calibration, made_rates

from steelyard.catalog import store_calibration
from steelyard.cli.serve import explain, profile
from steelyard.errors import BackendError, CalibrationError, ConfigError
from steelyard.nn import checkpoint
from steelyard.serve import SamplingParams, SchedulerConfig
from steelyard.serve.account import account_decoding, account_prompt, step_time_of
from steelyard.serve.engine import LLM
from steelyard.serve.engine_rates import measure_engine
from steelyard.serve.step_parts import own_core, time_chunks, time_decoding

CONFIG = SchedulerConfig(
    num_blocks=32, block_size=8, token_budget=32, max_num_seqs=4, max_model_len=96
)


@pytest.fixture(scope="module")
def llm(model):
    return LLM(model, CONFIG, native=True)


def test_every_part_of_a_decoding_step_is_timed(llm):
    steps = time_decoding(llm, batch=3, context=20, steps=2)
    for step in steps:
        assert {"qkv", "attention", "head", "sampling", "python"} < set(step.seconds)
        assert all(seconds >= 0 for seconds in step.seconds.values())
        assert min(step.seconds[name] for name in ("qkv", "up", "down", "head", "python")) > 0
        _, sequences, prompt, _, decoding, attended, _ = step.features
        assert (sequences, prompt, decoding) == (3, 0, 3) and attended >= 60
    assert steps[1].features[5] == steps[0].features[5] + 3


def test_chunks_of_a_prompt_are_timed_at_its_end(llm):
    steps = time_chunks(llm, context=80)
    assert [step.features[2] for step in steps] == [32, 32, 16]
    assert steps[-1].seconds["head"] > 0


def test_timing_leaves_the_engine_as_it_was(llm):
    before = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5))[0].tokens
    time_decoding(llm, batch=1, context=8, steps=1)
    assert llm.runner.native_steps.part_seconds is None and not llm.scheduler.has_work
    assert llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5))[0].tokens == before


def test_what_cannot_be_timed_is_refused(llm, model):
    for batch, context in ((5, 8), (0, 8), (1, 1), (4, 90)):
        with pytest.raises(ConfigError):
            time_decoding(llm, batch=batch, context=context, steps=1)
    other = LLM(model, CONFIG, compiled=False)
    with pytest.raises(BackendError, match="native kernels"):
        time_decoding(other, batch=1, context=8, steps=1)
    with pytest.raises(BackendError, match="no rates"):
        step_time_of(other, made_rates())


def test_a_thread_has_its_own_core_only_for_a_while():
    cores = os.sched_getaffinity(0)
    with own_core():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == cores


def test_an_account_puts_times_beside_bounds(llm):
    many = account_decoding(llm, made_rates(), batch=4, context=16)
    prompt = account_prompt(llm, made_rates())
    assert (many.kind, many.tokens, prompt.kind, prompt.tokens) == ("decode", 4, "prefill", 32)
    for account in (many, prompt):
        assert account.seconds == pytest.approx(sum(item.seconds for item in account.operators))
        assert account.ceiling_tokens_per_s == pytest.approx(account.tokens / account.bound_s)
        weighed = [item for item in account.operators if item.bound]
        assert {item.name for item in weighed} == {"qkv", "attention", "out", "up", "down", "head"}
        assert all(item.num_bytes > 0 and item.stream_share > 0 for item in weighed)


def test_commands_explain_where_a_step_goes(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    checkpoint.save(model, tmp_path / "model")
    folder = str(tmp_path / "model")
    with pytest.raises(CalibrationError) as caught:
        explain(folder)
    assert "steelyard calibrate" in caught.value.hint
    store_calibration(made_calibration(made_rates()))
    explain(folder, batch=2, context=16)
    text = capsys.readouterr().out
    assert "tokens/s now" in text and "ms at the ceiling" in text and "int4" in text
    profile(folder, step=True, batch=(1,), context=16, json=True)
    accounts = json.loads(capsys.readouterr().out)
    assert [item["kind"] for item in accounts] == ["decode", "prefill"]
    with pytest.raises(ConfigError):
        explain(folder, batch=0)


@pytest.mark.slow
def test_rates_are_measured_for_every_type():
    rates = measure_engine(quick=True)
    assert rates and rates.types == ("fp32", "bf16", "int8", "int4")
    assert {"fp32", "bf16"} <= set(rates.decode) == set(rates.prefill)
    assert all(rates.flops_per_s(kind) > 1e9 for kind in rates.types)
