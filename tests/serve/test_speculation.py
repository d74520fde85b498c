import numpy as np
import pytest
import torch

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError
from steelyard.nn import checkpoint
from steelyard.nn.transformer import build
from steelyard.serve import SamplingParams, Scheduler, SchedulerConfig, TraceRequest
from steelyard.serve.build import make_engine
from steelyard.serve.engine import LLM
from steelyard.serve.options import EngineOptions
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.speculation.control import AdaptiveDrafting
from steelyard.serve.scheduling.speculation.ngram import NgramDrafter
from steelyard.serve.scheduling.speculation.speculator import Speculator
from steelyard.serve.scheduling.speculation.step_costs import StepCosts
from steelyard.serve.simulate import AssumedDrafter, simulate

ROOMY = SchedulerConfig(num_blocks=160, block_size=4, max_model_len=64, max_num_seqs=8)
TIGHT = {"num_blocks": 20, "block_size": 4, "token_budget": 16, "max_num_seqs": 6}


def prompts_of(seed, count=5):
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 97, 9).tolist()
    return [
        (common if at % 2 else []) + rng.integers(0, 97, int(rng.integers(1, 14))).tolist()
        for at in range(count)
    ]


def outputs_of(llm, prompts, params):
    return [
        [
            (item.tokens, item.finish_reason, item.logprobs, item.top_logprobs)
            for item in one.outputs
        ]
        for one in llm.generate(prompts, params)
    ]


KINDS = {
    "greedy": SamplingParams(max_tokens=24),
    "one token": SamplingParams(max_tokens=1),
    "drawn": SamplingParams(max_tokens=24, temperature=0.9, top_p=0.9, top_k=40, seed=3),
    "several": SamplingParams(max_tokens=17, temperature=1.0, n=3, seed=8),
    "stop tokens": SamplingParams(max_tokens=24, stop_tokens=tuple(range(12)), min_tokens=5),
    "penalties": SamplingParams(
        max_tokens=24, repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1
    ),
    "log probabilities": SamplingParams(max_tokens=13, logprobs=3, logit_bias=((7, 2.0),)),
    "ranked": SamplingParams(max_tokens=12, temperature=1.0, best_of=3, seed=2),
    "beams": SamplingParams(max_tokens=9, beam_width=2, n=2),
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ranked"])
def test_outputs_with_guesses_are_the_outputs_without(model, know, kind):
    prompts = prompts_of(1)
    params = KINDS[kind]
    expected = outputs_of(LLM(model, ROOMY), prompts, params)
    llm = LLM(model, ROOMY, speculate="ngram")
    know(llm, prompts, expected)
    assert outputs_of(llm, prompts, params) == expected
    stats = llm.stats()
    assert stats.blocks_in_use == 0
    if kind in ("beams", "one token"):
        assert stats.drafted_tokens == 0
    else:
        assert 0 < stats.accepted_tokens < stats.drafted_tokens


@pytest.mark.parametrize("allocator", ["paged", "block-group"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_preempted_and_chunked_requests_keep_their_tokens(
    model, know, allocator, preemption, temperature
):
    prompts = prompts_of(2, 8)
    params = SamplingParams(max_tokens=30, temperature=temperature, seed=5)
    limits = {**TIGHT, "max_model_len": 64, "allocator": allocator, "preemption": preemption}
    config = SchedulerConfig(**limits, host_blocks=64 if preemption == "swap" else 0)
    expected = outputs_of(LLM(model, ROOMY), prompts, params)
    llm = LLM(model, config, speculate="ngram")
    know(llm, prompts, expected)
    for _ in range(2):  # the second time prefixes are found
        found = outputs_of(llm, prompts, params)
        assert [[item[:2] for item in one] for one in found] == [
            [item[:2] for item in one] for one in expected
        ]
    stats = llm.stats()
    assert stats.preemptions > 0
    assert stats.cached_prompt_tokens > 0
    assert stats.accepted_tokens > 0
    assert stats.blocks_in_use == 0
    llm.close()


def test_wrong_guesses_leave_no_block_and_no_prefix_behind(model, know):
    prompt = list(range(10))
    params = SamplingParams(max_tokens=20)
    (expected,) = outputs_of(LLM(model, ROOMY), [prompt], params)
    llm = LLM(model, ROOMY, speculate="ngram")
    know(llm, [prompt], [expected], wrong=1)  # all guesses
    llm.add_request(prompt, params)
    while llm.scheduler.has_work:
        llm.step()
        for request in llm.scheduler.running:
            assert request.table.num_blocks == -(-request.num_tokens // 4)
            assert request.num_computed == request.num_tokens - 1
            assert request.drafts == [] and request.num_unknown == 0
    stats = llm.stats()
    assert stats.accepted_tokens == 0
    assert stats.drafted_tokens > 0
    # What the index knows is what was said.
    again = prompt + expected[0][0]
    assert llm.scheduler.memory.num_cached(Request(id="again", prompt=again)) == 28
    llm.scheduler.speculator = None
    three = SamplingParams(max_tokens=3)
    assert outputs_of(llm, [again], three) == outputs_of(LLM(model, ROOMY), [again], three)


def test_deltas_tell_each_token_once(model, know):
    prompt = [4, 8, 15]
    params = SamplingParams(max_tokens=20)
    (expected,) = outputs_of(LLM(model, ROOMY), [prompt], params)
    llm = LLM(model, ROOMY, speculate="ngram")
    know(llm, [prompt], [expected])
    llm.add_request(prompt, params)
    told, steps = [], 0
    while llm.scheduler.has_work:
        for delta in llm.step().deltas:
            told += delta.tokens
        steps += 1
    assert told == expected[0][0]
    assert steps < 12


def test_a_draw_is_distributed_as_without_guesses(model, check_everything):
    # A guess that does not depend on the draw is right with the model's probability of it; where it
    # is wrong the token has to be distributed as the rest.
    count, prompt = 1500, [3, 1, 4, 1, 5]
    params = [
        SamplingParams(max_tokens=3, temperature=0.35, top_k=5, seed=seed) for seed in range(count)
    ]
    config = SchedulerConfig(
        num_blocks=512, block_size=16, max_model_len=64, token_budget=512, max_num_seqs=64
    )
    logits = model(torch.tensor([prompt]))[0, -1]
    kept = (logits / 0.35).topk(5)
    first = int(kept.indices[0])

    class Constant:
        longest, round_s, spent_s = 6, 0.0, 0.0

        def draft(self, requests, lengths):
            return [[first] * length for length in lengths]

    llm = LLM(model, config, speculate="ngram")
    check_everything(llm)
    llm.scheduler.speculator.drafter = Constant()
    with torch.inference_mode():
        after = (model(torch.tensor([[*prompt, first]]))[0, -1] / 0.35).topk(5)
    seconds = [
        one.tokens[1] for one in llm.generate([prompt] * count, params) if one.tokens[0] == first
    ]
    expected = after.values.softmax(-1).numpy() * len(seconds)
    found = np.array([seconds.count(int(token)) for token in after.indices])
    assert found.sum() == len(seconds) > 100
    large = expected >= 5
    chi_square = ((found - expected) ** 2 / expected)[large].sum()
    assert large.sum() >= 2
    assert chi_square < 18.5  # 4 degrees of freedom, one in a thousand


def noisy_twin(model):
    """The model with noise in its weights: it often says the same."""
    twin = build(model.architecture, seed=2)
    twin.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.ndim > 1:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(0.02 * parameter.std() * noise)
    return twin.eval()


@pytest.mark.parametrize("kind", ["drawn", "ranked", "penalties"])
def test_a_draft_model_changes_no_token(model, check_everything, kind):
    prompts = prompts_of(3)
    params = KINDS[kind]
    limits = SchedulerConfig(**{**TIGHT, "num_blocks": 40}, max_model_len=64)
    expected = outputs_of(LLM(model, ROOMY), prompts, params)
    llm = LLM(model, limits, speculate=noisy_twin(model))
    check_everything(llm)
    found = outputs_of(llm, prompts, params)
    assert [[item[:2] for item in one] for one in found] == [
        [item[:2] for item in one] for one in expected
    ]
    stats = llm.stats()
    assert stats.accepted_tokens > 0.2 * stats.drafted_tokens > 0
    assert stats.blocks_in_use == 0


def test_a_draft_model_that_is_the_model_is_always_right(model, check_everything):
    llm = LLM(model, ROOMY, speculate=model)
    check_everything(llm)
    llm.generate(prompts_of(4), SamplingParams(max_tokens=20, temperature=0.7, seed=1))
    stats = llm.stats()
    assert stats.accepted_tokens > 0.95 * stats.drafted_tokens > 0


def test_a_draft_model_reads_long_prompts_in_pieces_and_takes_no_slot_meanwhile(
    model, check_everything
):
    config = SchedulerConfig(
        num_blocks=64, block_size=4, token_budget=8, max_num_seqs=2, max_model_len=64
    )
    llm = LLM(model, config, speculate=model)
    check_everything(llm)
    llm.add_request(list(range(30)), SamplingParams(max_tokens=20))
    accepted = []
    while llm.scheduler.has_work:
        llm.step()
        accepted.append(llm.stats().accepted_tokens)
        for request in llm.scheduler.running:
            held = max(len(request.prompt) + 1, request.num_tokens)
            assert request.table.num_blocks <= -(-held // 4)
    assert accepted[6] == 0 < accepted[-1]


def test_a_replay_runs_without_guesses(model):
    llm = LLM(model, ROOMY, speculate="ngram")
    llm.replay([TraceRequest(arrival_s=0.0, prompt=[1, 2, 3] * 5, output_tokens=20)])
    assert llm.stats().steps == 20
    assert llm.scheduler.speculator is not None


def test_what_cannot_guess_is_refused(model):
    with pytest.raises(ConfigError, match="asynchronous"):
        LLM(model, ROOMY, speculate="ngram", asynchronous=True)
    other = build(
        Architecture(
            name="other",
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            num_kv_heads=2,
            head_dim=8,
            intermediate_size=16,
            vocab_size=50,
            max_positions=64,
        )
    )
    with pytest.raises(ConfigError, match="50 tokens"):
        LLM(model, ROOMY, speculate=other)


def test_options_make_the_engine_that_guesses(model, tmp_path):
    def kind(speculate, **others):
        options = EngineOptions(pool_bytes=1 << 20, speculate=speculate, native=False, **others)
        guesser = make_engine(model, options).scheduler.speculator
        return guesser.drafter.kind if guesser else "off"

    checkpoint.save(model, tmp_path / "small")
    assert kind("auto") == kind("ngram") == "ngram"
    assert kind("off") == kind("auto", asynchronous=True) == "off"
    assert kind(str(tmp_path / "small")) == "model"
    for others in ({"asynchronous": True}, {"cache": "window"}):
        with pytest.raises(ConfigError, match="--speculate needs"):
            EngineOptions(speculate="ngram", **others)


def followed(prompt, output, length):
    request = Request(id="a", prompt=prompt, output=output)
    return NgramDrafter().draft([request], [length])[0]


def test_n_grams_are_found_at_their_latest_place():
    assert followed([1, 2, 3, 4, 5, 9, 1, 2, 3], [], 3) == [4, 5, 9]
    assert followed([1, 2, 3, 7, 1, 2, 3, 8, 6], [1, 2, 3], 2) == [8, 6]
    # The longer run tells places apart.
    text = [1, 2, 3, 4, 5, 6, 70, 0, 9, 9, 9, 4, 5, 6, 80]
    assert followed(text, [1, 2, 3, 4, 5, 6], 1) == [70]
    # What was copied goes on where the sequence ends.
    assert followed([7], [7, 7, 7, 7], 5) == [7] * 5
    assert followed([1, 2, 3, 1, 2, 3, 1], [2], 5) == [3, 1, 2, 3, 1]
    assert followed([1, 2], [], 4) == []
    assert followed([1, 2, 3, 4, 1, 2, 3], [], 0) == []


def test_n_grams_follow_an_output_as_it_grows():
    rng = np.random.default_rng(0)
    request = Request(id="a", prompt=rng.integers(0, 3, 20).tolist())
    drafter = NgramDrafter()
    for token in rng.integers(0, 3, 60).tolist():
        request.output.append(token)
        found = drafter.draft([request], [4])[0]
        assert found == followed(request.prompt, request.output, 4)
    # The same id may come again.
    assert drafter.draft([Request(id="a", prompt=[1])], [4]) == [[]]


def test_costs_lie_on_a_line_between_what_was_measured():
    costs = StepCosts()
    assert costs.predict(3, 2)[0] == 1.0
    for seconds in (1.0, 1.0, 50.0):
        costs.note(2, seconds)
    costs.note(6, 3.0)
    assert costs.predict(1, 6).tolist() == [1.0, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert costs.predict(8, 1).tolist() == [4.0]  # as from 2 to 6
    costs.note(6, 3.0)
    for _ in range(1100):
        costs.note(2, 1.5)
    # Six rows were too long ago, but how steeply times rise is still known.
    assert costs.predict(4, 1)[0] == pytest.approx(1.5 * (1 + 2 / 6))


def taught(rows, acceptance, rounds=60):
    """A control that has seen steps of these seconds by rows, and this acceptance of four."""
    control = AdaptiveDrafting()
    request = Request(id="a", prompt=[1])
    for count, seconds in rows.items():
        control.timed(count, seconds, 0.0)
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        right = int(np.argmin([*(rng.random(4) < acceptance), False]))
        control.checked(request, right, int(right < 4))
    return control, request


def test_as_many_guesses_are_checked_as_pay():
    flat, request = taught({1: 1.0, 17: 1.1}, 0.9)
    assert flat.acceptance(request) == pytest.approx(0.9, abs=0.07)
    many = flat.choose([request], [15], 1, 0.0)[0]
    steep, request = taught({1: 1.0, 17: 5.0}, 0.9)
    few = steep.choose([request], [15], 1, 0.0)[0]
    assert 15 >= many > few > 0
    # With guesses that cost a tenth of a step each, fewer pay.
    assert flat.choose([request], [15], 1, 0.3)[0] < many
    # Rows that cost what a step costs leave nothing to gain.
    level, request = taught({1: 1.0, 17: 17.0}, 0.9)
    assert level.choose([request], [15], 1, 0.0) == [0]
    assert flat.choose([request], [0], 1, 0.0) == [0]


def test_the_best_sequences_of_a_batch_are_checked_first():
    control, good = taught({2: 1.0, 32: 2.5}, 0.95)
    bad = Request(id="b", prompt=[1])
    for _ in range(40):
        control.checked(bad, 0, 1)
    chosen = control.choose([bad, good], [8, 8], 2, 0.0)
    assert chosen[0] < chosen[1]


def test_without_gain_a_guess_is_checked_now_and_then():
    control, request = taught({1: 1.0, 17: 3.0}, 0.0)
    chosen = []
    for _ in range(400):
        if control.looks():
            chosen.append(control.choose([request], [15], 1, 0.0)[0])
            if chosen[-1]:
                control.checked(request, 0, 1)
    assert len(chosen) < 150
    assert sum(chosen) == chosen.count(1) in range(3, 8)
    # When guesses become right, they are checked again.
    for _ in range(400):
        if control.looks():
            count = control.choose([request], [15], 1, 0.0)[0]
            control.checked(request, count, 0)
    assert control.choose([request], [15], 1, 0.0)[0] > 3


@pytest.mark.parametrize("acceptance", [0.0, 0.8])
def test_the_simulator_drives_the_same_control(acceptance):
    trace = [TraceRequest(arrival_s=0.0, prompt=[7], output_tokens=300)]
    config = SchedulerConfig(num_blocks=64, max_model_len=512)
    drafter = AssumedDrafter(acceptance, np.random.default_rng(0))
    scheduler = Scheduler(config, speculator=Speculator(drafter))
    found = simulate(scheduler, trace, lambda plan: 0.01 + 0.0003 * plan.num_tokens)
    speculator = scheduler.speculator
    plain = 300 * 0.0103
    makespan = found.summary()["serve.makespan"]
    if acceptance:
        # Leviathan et al. 2023, equation 1: 1 / (1 - 0.8) tokens a step at most.
        assert plain / 4 < makespan < plain / 2.5
        assert speculator.num_accepted > 150
    else:
        assert makespan < 1.01 * plain
        assert speculator.num_drafted < 100
