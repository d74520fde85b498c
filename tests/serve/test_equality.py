import numpy as np
import pytest
import torch
from benchmarks.serve._contiguous import contiguous_scheduler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import build
from steelyard.serve import SamplingParams, SchedulerConfig
from steelyard.serve.engine import LLM

LONGEST = 96


def beam_search(model, prompt, width, count, stop, length_penalty):
    """The slow obvious version: a full forward for every beam and token, hypotheses in one list."""
    live, done = [([], 0.0)], []
    for _ in range(count):
        with torch.inference_mode():
            logprobs = (
                model(torch.tensor([prompt + tokens for tokens, _ in live]))[:, -1]
                .float()
                .log_softmax(-1)
            )
        found = []
        for (tokens, total), row in zip(live, logprobs, strict=True):
            best = row.topk(2 * width)
            found += [
                (total + value, tokens, token)
                for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
        found = sorted(found, key=lambda item: -item[0])[: 2 * width]
        done += [
            (total / (len(tokens) + 1) ** length_penalty, tokens)
            for total, tokens, token in found[:width]
            if token in stop
        ]
        live = [([*tokens, token], total) for total, tokens, token in found if token not in stop][
            :width
        ]
        if len(done) >= width:
            live = []
            break
    done += [(total / len(tokens) ** length_penalty, tokens) for tokens, total in live]
    return [tokens for _, tokens in sorted(done, key=lambda item: -item[0])]


@st.composite
def engines(draw):
    """Limits that leave little room, with every allocator, way to preempt and order."""
    size = draw(st.sampled_from([1, 4, 8, 16]))
    allocator = draw(
        st.sampled_from(
            [
                "paged",
                "paged",
                "block-group",
                "contiguous-max",
                "contiguous-pow2",
                "contiguous-oracle",
            ]
        )
    )
    is_contiguous = allocator.startswith("contiguous")
    needed = LONGEST // size
    sequences = draw(st.sampled_from([1, 3, 8]))
    config = SchedulerConfig(
        num_blocks=128 // size * draw(st.integers(1, 3))
        if is_contiguous
        else needed + draw(st.integers(0, needed // 2)),
        block_size=size,
        token_budget=max(draw(st.sampled_from([3, 8, 13, 64])), sequences),
        max_num_seqs=sequences,
        max_model_len=LONGEST,
        prefix_caching=draw(st.booleans()),
        allocator="paged" if is_contiguous else allocator,
        preemption="recompute"
        if is_contiguous
        else draw(st.sampled_from(["recompute", "swap", "auto"])),
        host_blocks=2 * needed,
        swap_s_per_block=draw(st.sampled_from([1e-4, 1e-3])) * size,
        prefill_s_per_token=1e-3,
        policy=draw(st.sampled_from(["fcfs", "fcfs", "priority", "vtc", "dlpm", "sjf"])),
        update_every=draw(st.sampled_from([0, 3])),
    )
    reservation = allocator.removeprefix("contiguous-") if is_contiguous else ""
    return config, reservation, draw(st.booleans()), draw(st.integers(0, 2**20))


def draw_jobs(model, greedy, seed, sequences):
    """Eight prompts, some with a common beginning, with what should come out of them."""
    generator = np.random.default_rng(seed)
    common = generator.integers(0, 97, 24).tolist()
    jobs = []
    for row in range(8):
        prompt = (
            common * (row % 3 == 0) + generator.integers(0, 97, generator.integers(1, 30)).tolist()
        )
        count = int(generator.integers(1, 20))
        plain = greedy(prompt, count)
        kind = ["plain", "stop", "several", "beams"][generator.integers(4 if sequences > 1 else 2)]
        if kind == "plain":
            jobs.append((prompt, SamplingParams(max_tokens=count), [plain]))
        elif kind == "stop":
            end = plain[generator.integers(count)]
            jobs.append(
                (
                    prompt,
                    SamplingParams(max_tokens=count, stop_tokens=(end,)),
                    [plain[: plain.index(end)]],
                )
            )
        elif kind == "several":
            jobs.append((prompt, SamplingParams(max_tokens=count, n=3), [plain] * 3))
        else:
            stop, count = tuple(generator.integers(0, 97, 3).tolist()), min(count, 8)
            expected = beam_search(model, prompt, 3, count, stop, 0.7)[:2]
            jobs.append(
                (
                    prompt,
                    SamplingParams(
                        max_tokens=count, n=2, beam_width=3, stop_tokens=stop, length_penalty=0.7
                    ),
                    expected,
                )
            )
    return jobs


def assert_equal_outputs(model, greedy, engine):
    config, reservation, asynchronous, seed = engine
    llm = LLM(model, config, asynchronous=asynchronous)
    if reservation:
        llm.driver.scheduler = contiguous_scheduler(config, reservation)
    needs = 1 if reservation and config.num_blocks * config.block_size < 384 else 3
    jobs = draw_jobs(model, greedy, seed, config.max_num_seqs if needs == 3 else 1)
    jobs = [job for job in jobs if not refused(llm, job)]
    for _ in range(2):  # the second time meets a warm prefix index
        done = llm.generate([prompt for prompt, _, _ in jobs], [params for _, params, _ in jobs])
        assert [[output.tokens for output in item.outputs] for item in done] == [
            expected for _, _, expected in jobs
        ]
        llm.driver.settle()
        assert not llm.scheduler.has_work
    assert llm.stats().blocks_in_use == 0
    llm.close()


def refused(llm, job):
    """Whether three sequences of a request are more than a small pool can hold."""
    count, total = job[1].num_sequences, len(job[0]) + job[1].max_tokens
    return count > 1 and count * total > llm.config.num_blocks * llm.config.block_size


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(engine=engines())
def test_outputs_equal_the_plain_forward(model, greedy, engine):
    assert_equal_outputs(model, greedy, engine)


@pytest.fixture(scope="module")
def windowed():
    """A Gemma-like decoder: two of three layers have a window, scores and logits are capped."""
    shape = {
        "hidden_size": 32,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "mlp": "geglu",
        "sandwich_norm": True,
        "unit_offset_norm": True,
        "sliding_window": 11,
        "full_attention_every": 3,
        "local_rope_theta": 100.0,
        "attention_softcap": 3.0,
        "logit_softcap": 20.0,
    }
    built = build(Architecture(name="windowed", vocab_size=97, max_positions=128, **shape), seed=1)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10.0)
    return built.eval()


def assert_windowed_outputs(model, engine):
    def greedy(prompt, count):
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(count):
                tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        return tokens[len(prompt) :]

    assert_equal_outputs(model, greedy, engine)


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(engine=engines())
def test_windows_and_caps_equal_the_plain_forward(windowed, engine):
    assert_windowed_outputs(windowed, engine)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(engine=engines())
def test_windows_and_caps_equal_the_plain_forward_often(windowed, engine):
    assert_windowed_outputs(windowed, engine)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(engine=engines())
def test_outputs_equal_the_plain_forward_often(model, greedy, engine):
    assert_equal_outputs(model, greedy, engine)


def roomy(**changes):
    base = {
        "num_blocks": 64,
        "block_size": 8,
        "token_budget": 64,
        "max_num_seqs": 8,
        "max_model_len": 96,
    }
    return SchedulerConfig(**{**base, **changes})


def test_every_way_to_make_room_is_taken_and_changes_nothing(model, greedy):
    generator = np.random.default_rng(3)
    prompts = [generator.integers(0, 97, 20).tolist() for _ in range(5)]
    expected = [greedy(prompt, 40) for prompt in prompts]
    tight = {"num_blocks": 14, "prefix_caching": False, "host_blocks": 40}
    for changes, swaps in (
        ({}, False),
        ({"preemption": "swap"}, True),
        ({"preemption": "auto", "swap_s_per_block": 1.0, "prefill_s_per_token": 1e-9}, False),
        (
            {
                "preemption": "auto",
                "swap_s_per_block": 1e-9,
                "prefill_s_per_token": 1.0,
                "allocator": "block-group",
            },
            True,
        ),
    ):
        for asynchronous in (False, True):
            llm = LLM(model, roomy(**tight, **changes), asynchronous=asynchronous)
            assert [
                item.tokens for item in llm.generate(prompts, SamplingParams(max_tokens=40))
            ] == expected
            stats = llm.stats()
            assert stats.preemptions > 0 and (stats.swaps > 0) == swaps
            assert stats.blocks_in_use == 0 and stats.swapped == 0
            llm.close()


def test_samples_of_one_prompt_have_their_own_seeds_and_share_its_blocks(model):
    llm = LLM(model, roomy())
    params = SamplingParams(max_tokens=6, n=3, temperature=1.5, seed=5, logprobs=2)
    prompt = list(range(30))
    together = llm.generate([prompt], params)[0].outputs
    apart = [
        llm.generate([prompt], SamplingParams(max_tokens=6, temperature=1.5, seed=5 + index))[
            0
        ].tokens
        for index in range(3)
    ]
    assert [output.tokens for output in together] == apart
    assert len({tuple(tokens) for tokens in apart}) == 3
    for output in together:
        assert len(output.logprobs) == len(output.top_logprobs) == 6
        assert all(len(top) == 2 and top[0][1] >= top[1][1] for top in output.top_logprobs)
        assert output.cumulative_logprob == pytest.approx(sum(output.logprobs))
    llm.reset()
    llm.add_request(prompt, params)
    llm.step()
    assert llm.stats().blocks_in_use == 4  # one prompt of 30 tokens in blocks of 8
    plan = llm.step().plan
    assert len(plan.copies) == 2 and plan.num_decodes == 3


def test_the_likeliest_of_several_draws_are_returned(model):
    llm = LLM(model, roomy())
    params = SamplingParams(max_tokens=6, n=2, best_of=5, temperature=1.5, seed=1)
    best = llm.generate([[1, 2, 3]], params)[0].outputs
    everyone = llm.generate(
        [[1, 2, 3]], SamplingParams(max_tokens=6, n=5, temperature=1.5, seed=1, logprobs=0)
    )[0].outputs
    everyone = sorted(everyone, key=lambda output: -sum(output.logprobs) / len(output.logprobs))
    assert [output.tokens for output in best] == [output.tokens for output in everyone[:2]]
    assert best[0].logprobs == []


def test_log_probabilities_are_those_of_the_plain_forward(model):
    prompt = [5, 6, 7]
    output = (
        LLM(model, roomy())
        .generate([prompt], SamplingParams(max_tokens=5, logprobs=3))[0]
        .outputs[0]
    )
    with torch.inference_mode():
        rows = model(torch.tensor([prompt + output.tokens]))[0, 2:-1].log_softmax(-1)
    np.testing.assert_allclose(
        output.logprobs,
        [row[token] for row, token in zip(rows, output.tokens, strict=True)],
        atol=1e-4,
    )
    np.testing.assert_allclose(
        [[value for _, value in top] for top in output.top_logprobs], rows.topk(3).values, atol=1e-4
    )


def test_steps_tell_what_is_new_and_an_asynchronous_engine_tells_it_a_step_later(model, greedy):
    expected = greedy([1, 2, 3], 12)
    end = next(token for token in expected if token != expected[0])
    upto = expected[: expected.index(end)]
    for asynchronous in (False, True):
        llm = LLM(model, roomy(), asynchronous=asynchronous)
        name = llm.add_request([1, 2, 3], SamplingParams(max_tokens=12, stop_tokens=(end,)))
        results = []
        while llm.scheduler.has_work:
            results.append(llm.step())
        assert (results[0].plan is None) == asynchronous
        deltas = [delta for result in results for delta in result.deltas]
        assert [token for delta in deltas for token in delta.tokens] == upto
        assert [delta.finish_reason for delta in deltas] == [""] * len(upto) + ["stop"]
        assert {delta.request_id for delta in deltas} == {name}
        assert llm.stats().blocks_in_use == 0


def test_pinned_prefixes_stay_and_are_found(model, greedy):
    llm = LLM(model, roomy(num_blocks=16))
    prompt = list(range(40))
    assert llm.scheduler.pin_prefix(prompt[:32]) == 32
    llm.generate([prompt], SamplingParams(max_tokens=2))
    others = [np.random.default_rng(row).integers(0, 97, 60).tolist() for row in range(6)]
    llm.generate(others, SamplingParams(max_tokens=8))
    done = llm.generate([[*prompt[:32], 9, 9, 9]], SamplingParams(max_tokens=4))[0]
    assert done.num_cached == 32
    assert done.tokens == greedy([*prompt[:32], 9, 9, 9], 4)
    assert llm.stats().blocks_in_use == 4
    llm.scheduler.unpin_prefix(prompt[:32])
    assert llm.stats().blocks_in_use == 0
