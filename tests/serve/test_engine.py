import numpy as np
import pytest
import torch

from steelyard.cost.step_time import FEATURES, ServeStepTime
from steelyard.errors import CapacityError, ConfigError, TraceError
from steelyard.serve import (
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    make_request,
    synthetic_rows,
    with_prompts,
)
from steelyard.serve.engine import LLM, default_config
from steelyard.serve.forecast import forecast_replay
from steelyard.serve.pool_size import chosen_pool_bytes
from steelyard.serve.profile import profile
from steelyard.serve.running.pool import slot_bytes
from steelyard.serve.simulate import VirtualClock, simulate


def config(**changes):
    base = {
        "num_blocks": 64,
        "block_size": 8,
        "token_budget": 64,
        "max_num_seqs": 8,
        "max_model_len": 96,
    }
    return SchedulerConfig(**{**base, **changes})


@pytest.fixture(scope="session")
def cases(greedy):
    generator = np.random.default_rng(0)
    shared = generator.integers(0, 97, 24).tolist()
    lengths = generator.integers(1, 50, 8)
    prompts = [
        (shared if row % 3 == 0 else []) + generator.integers(0, 97, int(size)).tolist()
        for row, size in enumerate(lengths)
    ]
    return prompts, [greedy(prompt, 16) for prompt in prompts]


@pytest.mark.parametrize(
    ("compiled", "changes"),
    [
        (True, {"token_budget": 8}),
        (True, {"token_budget": 13}),
        (True, {"token_budget": 512, "max_num_seqs": 16}),
        (True, {"prefix_caching": False}),
        (True, {"num_blocks": 13}),
        (True, {"num_blocks": 12, "prefix_caching": False}),
        (True, {"block_size": 1, "num_blocks": 150}),
        (True, {"block_size": 32, "num_blocks": 9}),
        (False, {"token_budget": 11}),
        (False, {"num_blocks": 13}),
    ],
    ids=str,
)
def test_greedy_outputs_equal_the_plain_forward(model, cases, changes, compiled):
    prompts, expected = cases
    assert len({tuple(tokens) for tokens in expected}) > 4
    llm = LLM(model, config(**changes), compiled=compiled)
    for _ in range(2):  # the second time meets a warm prefix index
        found = [item.tokens for item in llm.generate(prompts, SamplingParams(max_tokens=16))]
        assert found == expected
    assert llm.stats().blocks_in_use == 0
    assert changes.get("num_blocks") not in (12, 13) or llm.stats().preemptions > 0


def test_cached_prefixes_are_used(model, greedy):
    llm = LLM(model, config())
    prompt = list(range(40))
    first = llm.generate([prompt], SamplingParams(max_tokens=4))[0].tokens
    llm.add_request(prompt, SamplingParams(max_tokens=4), request_id="again")
    plan, _, _ = llm.step()
    assert plan is not None
    assert plan.num_tokens == 8
    assert first == greedy(prompt, 4)


def test_outputs_with_temperature_depend_on_the_seed_only(model):
    params = [
        SamplingParams(max_tokens=12, temperature=1.5, top_p=0.95, top_k=40, seed=seed)
        for seed in (1, 2, 1)
    ]
    prompts = [[5, 6, 7]] * 3
    alone = LLM(model, config()).generate(prompts[:1], params[:1])[0].tokens
    crowded = [item.tokens for item in LLM(model, config(token_budget=8)).generate(prompts, params)]
    assert crowded[0] == crowded[2] == alone
    assert crowded[0] != crowded[1]


def test_stop_tokens_end_the_output(model, greedy):
    expected = greedy([1, 2, 3], 12)
    end = next(token for token in expected if token != expected[0])
    upto = expected.index(end)
    done = LLM(model, config(), end_tokens=(end,)).generate(
        [[1, 2, 3]] * 2,
        [SamplingParams(max_tokens=12), SamplingParams(max_tokens=12, ignore_end=True)],
    )
    assert (done[0].tokens, done[0].finish_reason) == (expected[:upto], "stop")
    assert (done[1].tokens, done[1].finish_reason) == (expected, "length")


def test_the_simulator_plans_what_the_engine_plans(model):
    generator = np.random.default_rng(5)
    rows = synthetic_rows(
        generator,
        num_requests=30,
        rate_per_s=40.0,
        mean_prompt=25,
        mean_output=12,
        max_prompt=60,
        max_output=30,
    )
    trace = list(with_prompts(rows, generator, vocab_size=97))
    weights = np.array([3e-3, 2e-4, 1e-4, 1e-6, 5e-4, 1e-6, 1e-4])

    def step_time_s(plan):
        return float(plan.features() @ weights)

    clock = VirtualClock()
    llm = LLM(model, config(num_blocks=20, prefix_caching=False), clock=clock)
    execute = llm.runner.execute

    def timed(plan):
        clock.wait_until(clock.now_s() + step_time_s(plan))
        return execute(plan)

    llm.runner.execute = timed
    real = llm.replay(trace)
    simulated = simulate(Scheduler(llm.config), trace, step_time_s, make_request)
    assert llm.stats().preemptions > 0
    assert [plan.request_ids for plan in real.plans] == [
        plan.request_ids for plan in simulated.plans
    ]
    assert all(
        np.array_equal(a.slot_mapping, b.slot_mapping)
        for a, b in zip(real.plans, simulated.plans, strict=True)
    )
    np.testing.assert_allclose(
        real.timeline.first_token_s, simulated.timeline.first_token_s, rtol=1e-9
    )
    np.testing.assert_allclose(
        real.timeline.last_token_s, simulated.timeline.last_token_s, rtol=1e-9
    )
    assert {item.quantity for item in real.measurements()} == simulated.summary().keys()


def test_profile_gives_steps_a_model_can_be_fitted_on(model):
    samples = profile(
        LLM(model, config()), generator=np.random.default_rng(0), rounds=1, limit_s=0.5
    )
    assert samples.features.shape == (len(samples.seconds), len(FEATURES))
    fitted = samples.fit()
    assert fitted.predict(samples.features[:1])[0] > 0


def test_forecasts_widen_where_the_queue_amplifies_an_error_of_the_steps(model):
    generator = np.random.default_rng(2)
    rows = synthetic_rows(
        generator,
        num_requests=60,
        rate_per_s=8.0,
        mean_prompt=20,
        mean_output=12,
        max_prompt=60,
        max_output=30,
    )
    trace = list(with_prompts(rows, generator, vocab_size=97))
    steps = ServeStepTime(
        coefficients=(2e-3, 1e-3, 1e-4, 0.0, 1e-3, 0.0, 1e-4), relative_spread=0.1, count=50
    )
    found = {item.quantity: item for item in forecast_replay(LLM(model, config()), trace, steps)}
    assert {item.provenance for item in found.values()} == {"simulated"}

    def width(name):
        return (found[name].high - found[name].low) / found[name].value

    assert width("serve.tpot") > 0.3 and width("serve.request_rate") < 0.1


@pytest.mark.parametrize("dtype, row", [(torch.float32, 4 * 8), (torch.int8, 8 + 4)])
def test_the_default_pool_follows_model_length_and_memory(model, dtype, row):
    slot = 2 * 2 * 2 * row  # keys and values of two layers and two heads
    assert slot == slot_bytes(model.architecture, dtype)
    ample, packed = 1 << 40, sum(item.nbytes for item in model.parameters())
    assert chosen_pool_bytes(model, dtype, free=ample) == 32 * 128 * slot
    assert chosen_pool_bytes(model, dtype, 40, free=ample) == 32 * 48 * slot
    assert chosen_pool_bytes(model, dtype, free=packed + 1000 * slot) == 500 * slot
    # One sequence of a stated length, or a block, fits in any case.
    assert chosen_pool_bytes(model, dtype, 100, free=0) == 112 * slot
    assert chosen_pool_bytes(model, dtype, free=0) == 16 * slot
    assert default_config(model, kv_dtype=dtype).num_blocks == 32 * 8


def test_what_does_not_fit_is_refused(model):
    with pytest.raises(ConfigError, match="beyond the 128 positions"):
        LLM(model, config(max_model_len=256))
    with pytest.raises(CapacityError, match="cannot hold"):
        default_config(model, pool_bytes=10_000, max_model_len=128)
    llm = LLM(model, config())
    with pytest.raises(ConfigError, match=r"in \[0, 97\)"):
        llm.generate([[1], [97]], SamplingParams())
    assert not llm.scheduler.has_work
    with pytest.raises(TraceError, match="no request"):
        llm.replay([])
