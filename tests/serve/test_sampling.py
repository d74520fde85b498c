import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steelyard.errors import BackendError, ConfigError
from steelyard.serve.running.sampling import Sampler, draws
from steelyard.serve.running.sampling import sampler as sampler_module
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan


def make_plan(requests, positions=None):
    """A plan that only samples, one row per request."""
    count, none = len(requests), np.zeros(0, dtype=np.int64)
    positions = [len(request.output) for request in requests] if positions is None else positions
    return StepPlan(
        request_ids=[request.id for request in requests],
        num_decodes=count,
        token_ids=none,
        positions=none,
        slot_mapping=none,
        query_lengths=none,
        context_lengths=none,
        block_tables=none,
        sample_rows=np.arange(count),
        sampled=requests,
        output_positions=np.array(positions, dtype=np.int64),
    )


def sample(logits, requests, positions=None, sampler=None):
    return (sampler or Sampler()).sample(
        torch.as_tensor(logits).clone(), make_plan(requests, positions)
    )


def ask(name="a", prompt=(0,), output=(), **params):
    return Request(
        id=name, prompt=list(prompt), params=SamplingParams(**params), output=list(output)
    )


def many(logits, count, **params):
    """Tokens that one request would draw at `count` positions."""
    request = ask(**params)
    return sample(
        torch.as_tensor(logits, dtype=torch.float32).expand(count, -1),
        [request] * count,
        range(count),
    ).tokens


# --- the slow obvious version -------------------------------------------------------------------


def edited(logits, request):
    """Logits after biases and penalties, token by token."""
    params, made = request.params, [float(value) for value in logits]
    if len(request.output) < params.min_tokens and not params.ignore_end:
        for token in params.stop_tokens:
            made[token] = -math.inf
    for token, addend in params.logit_bias:
        made[token] += addend
    for token in range(len(made)):
        count = request.output.count(token)
        if count or token in request.prompt:
            made[token] *= (
                params.repetition_penalty if made[token] < 0 else 1 / params.repetition_penalty
            )
        made[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return np.array(made)


def distribution(logits, params):
    """Probabilities after temperature, min_p, top_k and top_p, with one full sort."""
    scaled = (np.asarray(logits, dtype=np.float64) - np.max(logits)) / params.temperature
    weights = np.exp(scaled)
    weights[weights < params.min_p] = 0
    order = np.argsort(-weights, kind="stable")
    order = order[: params.top_k or len(order)]
    share = np.cumsum(weights[order]) / weights[order].sum()
    order = order[: int(np.searchsorted(share, params.top_p - 1e-9)) + 1]
    made = np.zeros(len(weights))
    made[order] = weights[order] / weights[order].sum()
    return made


# --- draws --------------------------------------------------------------------------------------


def test_tokens_follow_the_cut_distribution():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    for params, expected in (
        ({"temperature": 1.0}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 1.0, "top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.7}, [0.625, 0.375, 0, 0]),
        ({"temperature": 0.5, "top_k": 2}, [0.25 / 0.34, 0.09 / 0.34, 0, 0]),
        ({"temperature": 1.0, "top_p": 1e-9}, [1, 0, 0, 0]),
        ({"temperature": 1.0, "min_p": 0.2}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"temperature": 1e-6}, [1, 0, 0, 0]),
        ({}, [1, 0, 0, 0]),
    ):
        share = np.bincount(many(logits, 4000, **params), minlength=4) / 4000
        np.testing.assert_allclose(share, expected, atol=4 * math.sqrt(0.25 / 4000))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.7, "seed": 5},
        {"top_k": 17},
        {"top_p": 0.8},
        {"min_p": 0.03},
        {"temperature": 0.8, "top_k": 60, "top_p": 0.9, "min_p": 0.01},
    ],
)
@pytest.mark.parametrize("size", [100, 3000])
def test_draws_pass_a_chi_square_test(params, size):
    logits = np.random.default_rng(size).normal(0, 1.5, size).astype(np.float32)
    params = {"temperature": 1.0, "seed": 1} | params
    expected = distribution(logits, SamplingParams(**params))
    count = 4000
    seen = np.bincount(many(logits, count, **params), minlength=size)
    assert seen[expected == 0].sum() == 0
    frequent = expected * count >= 5
    groups = (
        np.append(seen[frequent], seen[~frequent].sum()),
        np.append(expected[frequent], expected[~frequent].sum()) * count,
    )
    kept = groups[1] > 1
    assert (
        stats.chisquare(
            groups[0][kept], groups[1][kept] * groups[0][kept].sum() / groups[1][kept].sum()
        ).pvalue
        > 1e-3
    )


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(1, 3000),
    spread=st.sampled_from([0.0, 0.1, 2.0, 30.0]),
    levels=st.sampled_from([0, 1, 4]),
    top_k=st.integers(1, 3100),
    top_p=st.floats(0.001, 1.0),
    min_p=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_the_cut_is_that_of_a_full_sort(size, spread, levels, top_k, top_p, min_p, seed):
    rng = np.random.default_rng(seed)
    logits = (
        rng.normal(0, spread, size) if not levels else rng.integers(0, levels, size) * spread
    ).astype(np.float32)
    weights = np.empty(size, dtype=np.float32)
    draws.weigh(logits, logits.max(), 1.0, weights)
    np.testing.assert_allclose(
        weights, np.exp(np.float64(logits) - logits.max()), rtol=2e-5, atol=1e-37
    )
    assert weights.max() == 1.0
    if min_p:
        draws._drop_light(weights, min_p)
        assert ((weights > 0) == (weights >= np.float32(min_p))).all()
    counts, masses, found = np.empty(1024, np.int64), np.empty(1024), np.empty(size, np.uint32)
    ordered = np.sort(weights.astype(np.float64))[::-1]
    draws._histogram(weights, counts, masses)
    value, ties = 0.0, size
    if top_k < size:
        value, ties = draws._cut(weights, top_k, np.inf, counts, masses, found)
        ordered = ordered[:top_k]
        assert (weights > value).sum() + ties == top_k
    if top_p < 1:
        value, ties = draws._cut(
            weights, min(top_k, size), top_p * masses.sum(), counts, masses, found
        )
        kept = int((weights > value).sum() + ties)
        share = np.cumsum(ordered) / ordered.sum()
        assert share[kept - 1] >= top_p - 1e-9
        assert kept == 1 or share[kept - 2] < top_p + 1e-9
        ordered = ordered[:kept]
    np.testing.assert_allclose(masses.sum(), ordered.sum(), rtol=1e-9)
    token = draws._draw(weights, value, ties, rng.random(), masses)
    place = np.flatnonzero(np.argsort(-weights, kind="stable") == token)[0]
    assert place < len(ordered)
    assert weights[token] > 0


@pytest.mark.parametrize("draw", [0.0, 0.3, 1 - 2**-53])
def test_extreme_draws_stay_among_what_is_kept(draw):
    weights = np.array([0, 1, 0, 0.5, 1e-30, 0], dtype=np.float32)
    assert draws._draw_uncut(weights, float(weights.sum()), draw) in (1, 3, 4)
    assert draws._draw_uncut(weights, 1.6, draw) in (1, 3, 4)
    counts, masses = np.empty(1024, np.int64), np.empty(1024)
    draws._histogram(weights, counts, masses)
    value, ties = draws._cut(weights, 2, np.inf, counts, masses, np.empty(6, np.uint32))
    assert draws._draw(weights, value, ties, draw, masses) in (1, 3)


def slow_philox(counter, key):
    """Philox4x32-10 on Python's integers."""
    for _ in range(10):
        low, high = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = (
            (high >> 32) ^ counter[1] ^ key[0],
            high % 2**32,
            (low >> 32) ^ counter[3] ^ key[1],
            low % 2**32,
        )
        key = (key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32
    return counter


def test_philox_gives_the_published_values():
    assert slow_philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 2**32 - 1
    assert slow_philox((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    for seed, position in ((0, 0), (1, 7), (2**63 - 1, 12345), (2**40 + 3, 2**33)):
        first, second, *_ = slow_philox(
            (position % 2**32, position >> 32, 0, 0), (seed % 2**32, seed >> 32)
        )
        assert (
            draws.philox(np.uint64(seed), np.uint64(position))
            == ((first << 32 | second) >> 11) * 2.0**-53
        )


PARAMS = st.builds(
    dict,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 5, 40]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**63 - 1),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.3]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    logprobs=st.sampled_from([None, 0, 3]),
    logit_bias=st.sampled_from([(), ((3, 4.0), (5, -9.0))]),
)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(PARAMS, st.lists(st.integers(0, 59), max_size=6)), min_size=1, max_size=8
    ),
    seed=st.integers(0, 99),
)
def test_a_token_depends_on_its_own_request_only(rows, seed):
    rng = np.random.default_rng(seed)
    requests = [
        ask(str(row), prompt=[1, 2], output=output, **params)
        for row, (params, output) in enumerate(rows)
    ]
    logits = rng.normal(0, 2, (len(rows), 60)).astype(np.float32)
    together = sample(logits, requests)
    order = rng.permutation(len(rows))
    shuffled = sample(logits[order], [requests[row] for row in order])
    assert shuffled.tokens.tolist() == together.tokens[order].tolist()
    for row, request in enumerate(requests):
        alone = sample(logits[row : row + 1], [request])
        assert alone.tokens[0] == together.tokens[row]
        if request.params.logprobs is not None:
            assert alone.logprobs[0] == together.logprobs[row]
            expected = torch.log_softmax(torch.tensor(logits[row]), -1)[alone.tokens[0]]
            assert alone.logprobs[0] == pytest.approx(float(expected), abs=1e-4)
        if request.params.temperature == 0:
            assert alone.tokens[0] == edited(logits[row], request).argmax()
        else:
            assert distribution(edited(logits[row], request), request.params)[alone.tokens[0]] > 0


def test_threads_do_not_change_the_tokens():
    logits = torch.randn(8, 40_000, generator=torch.Generator().manual_seed(3)) * 3
    requests = [
        ask(str(row), temperature=row % 3 / 2, top_p=0.9, seed=row, logprobs=2) for row in range(8)
    ]
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(sample(logits, requests))
    finally:
        torch.set_num_threads(threads)
    assert all(np.array_equal(results[0].tokens, other.tokens) for other in results)
    assert all(np.array_equal(results[0].top_logprobs, other.top_logprobs) for other in results)


def test_narrow_logits_and_shared_rows_are_taken():
    logits = torch.tensor([[1.0, 3.0, 2.0]], dtype=torch.bfloat16)
    assert sample(logits, [ask()]).tokens.tolist() == [1]
    shared = torch.tensor([1.0, 3.0, 2.0]).expand(3, 3)
    assert Sampler().sample(
        shared, make_plan([ask(logit_bias=((0, 9.0),)), ask(), ask()])
    ).tokens.tolist() == [0, 1, 1]


def test_greedy_rows_on_a_device_take_the_same_tokens():
    logits = torch.randn(4, 900, generator=torch.Generator().manual_seed(8))
    plan = make_plan([ask(str(row)) for row in range(4)])
    peaks = sampler_module._peaks_of(logits)
    expected = Sampler().sample(logits, plan).tokens.tolist()
    assert sampler_module._take_likeliest(peaks, plan).tokens.tolist() == expected
    assert Sampler().sample(logits, plan, peaks).tokens.tolist() == expected
    logits[2, 5] = math.nan
    with pytest.raises(BackendError, match="logits for 2"):
        sampler_module._take_likeliest(sampler_module._peaks_of(logits), plan)
    plain = [
        ask(),
        ask(temperature=1.0),
        ask(logprobs=0),
        ask(logit_bias=((1, 1.0),)),
        ask(min_tokens=1),
        ask(beam_width=2),
    ]
    assert [sampler_module._is_greedy(request.params) for request in plain] == [True] + [False] * 5


def test_known_peaks_count_for_rows_that_nothing_changes():
    logits = torch.randn(4, 900, generator=torch.Generator().manual_seed(8))
    requests = [ask("a"), ask("b", logit_bias=((7, 50.0),)), ask("c", temperature=1.0), ask("d")]
    plan, peaks = make_plan(requests), sampler_module._peaks_of(logits)
    expected = Sampler().sample(logits.clone(), plan).tokens.tolist()
    assert expected[1] == 7
    assert Sampler().sample(logits.clone(), plan, peaks).tokens.tolist() == expected


# --- penalties and biases -----------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    repetition=st.floats(0.2, 3),
    prompt=st.lists(st.integers(0, 29), min_size=1, max_size=10),
    bias=st.lists(st.tuples(st.integers(0, 29), st.floats(-5, 5)), max_size=4),
    min_tokens=st.integers(0, 8),
    seed=st.integers(0, 99),
)
def test_penalties_kept_along_the_way_equal_counting_anew(
    presence, frequency, repetition, prompt, bias, min_tokens, seed
):
    rng, sampler = np.random.default_rng(seed), Sampler()
    request = ask(
        prompt=prompt,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        logit_bias=tuple(bias),
        min_tokens=min_tokens,
        stop_tokens=(4, 77),
        max_tokens=100,
        logprobs=1,
    )
    for _ in range(12):
        logits = rng.normal(0, 1, (1, 30)).astype(np.float32)
        expected = edited(logits[0], replace_stops(request))
        token = int(sample(logits, [request], sampler=sampler).tokens[0])
        assert expected[token] >= expected.max() - 1e-4
        request.output.append(token)


def replace_stops(request):
    """The same request without stop tokens outside the vocabulary."""
    return Request(
        id="x",
        prompt=request.prompt,
        output=request.output,
        params=replace(request.params, stop_tokens=(4,)),
    )


def test_histories_grow_and_follow_replaced_outputs_and_reused_names():
    sampler = Sampler()
    request = ask(
        prompt=range(5), repetition_penalty=2.0, frequency_penalty=1.0, beam_width=2, max_tokens=400
    )
    logits = np.random.default_rng(0).normal(0, 1, (1, 300)).astype(np.float32)
    for output in (list(range(200)), [*range(199), 250], [7, 7, 7], list(range(290))):
        request.output = output
        got = sample(logits, [request], sampler=sampler)
        fresh = sample(logits, [request])
        assert np.array_equal(got.top_tokens, fresh.top_tokens)
        assert np.array_equal(got.top_logprobs, fresh.top_logprobs)
    other = ask(prompt=[9], presence_penalty=2.0, logprobs=3)
    assert sample(logits, [other], sampler=sampler).tokens == sample(logits, [other]).tokens
    for number in range(1100):
        sample(logits, [ask(str(number), presence_penalty=1.0)], sampler=sampler)
    assert len(sampler._histories._known) <= 1024


def test_end_tokens_wait_for_min_tokens():
    logits = np.array([[0, 9, 5]], dtype=np.float32)
    held = {"min_tokens": 2, "stop_tokens": (1, 500)}
    assert sample(logits, [ask(output=[0], **held)]).tokens == [2]
    assert sample(logits, [ask(output=[0, 0], **held)]).tokens == [1]
    assert sample(logits, [ask(output=[0], ignore_end=True, **held)]).tokens == [1]
    stuck = sample(logits.repeat(2, 0), [ask(min_tokens=2, stop_tokens=(0, 1, 2)), ask()])
    assert stuck.errors == {0: "no token is left to choose"}
    assert stuck.tokens[1] == 1


@pytest.mark.parametrize("bias", [(97, 1.0), (-1, 1.0), (3, math.inf), (3, math.nan)])
def test_bad_biases_are_refused(bias):
    with pytest.raises(ConfigError, match="logit_bias has"):
        Sampler().check(SamplingParams(logit_bias=(bias,)), 97)


# --- log probabilities --------------------------------------------------------------------------


def test_log_probabilities_are_those_of_raw_logits():
    logits = torch.randn(5, 2500, generator=torch.Generator().manual_seed(1)) * 4
    logits[2, 100:] = -math.inf
    requests = [
        ask("a", logprobs=3, temperature=2.0, logit_bias=((7, 50.0),)),
        ask("b", logprobs=0),
        ask("c", logprobs=20, temperature=0.5),
        ask("d"),
        ask("e", n=2, best_of=4, temperature=1.0),
    ]
    output = sample(logits, requests)
    expected = torch.log_softmax(logits.double(), -1)
    assert output.tokens[0] == 7
    for row in (0, 1, 2, 4):
        assert output.logprobs[row] == pytest.approx(
            float(expected[row, output.tokens[row]]), abs=1e-4
        )
    assert np.isnan(output.logprobs[3])
    assert output.top_tokens.shape == (5, 20)
    for row, width in ((0, 3), (2, 20)):
        best = expected[row].topk(width)
        assert output.top_tokens[row, :width].tolist() == best.indices.tolist()
        np.testing.assert_allclose(output.top_logprobs[row, :width], best.values, atol=1e-4)
    assert (output.top_tokens[[1, 3, 4]] == -1).all()
    assert np.isneginf(output.top_logprobs[[1, 3, 4]]).all()


def test_nothing_is_reported_when_nobody_asks():
    output = sample(np.zeros((1, 4), dtype=np.float32), [ask()])
    assert (output.logprobs, output.top_tokens, output.top_logprobs) == (None, None, None)


def test_beams_get_twice_their_width_of_candidates_as_edited():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(2))
    beams = [
        ask("a", beam_width=3),
        ask("b", beam_width=3, min_tokens=1, stop_tokens=(int(logits[1].argmax()),)),
    ]
    output = sample(logits, beams)
    expected = torch.log_softmax(logits, -1)
    expected[1, logits[1].argmax()] = -math.inf
    assert output.top_tokens.tolist() == expected.topk(6).indices.tolist()
    np.testing.assert_allclose(output.top_logprobs, expected.topk(6).values, atol=1e-5)
    narrow = sample(logits[:1, :4], [ask("c", beam_width=3)])
    assert narrow.top_tokens[0, 4:].tolist() == [-1, -1]
    assert np.isneginf(narrow.top_logprobs[0, 4:]).all()


def test_equal_candidates_come_by_rising_token():
    output = sample(np.zeros((1, 2000), dtype=np.float32), [ask(logprobs=4)])
    assert output.tokens == [0]
    assert output.top_tokens.tolist() == [[0, 1, 2, 3]]


# --- broken models ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("column", [0, 999, 1500])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_and_infinite_logits_are_an_error(value, column, temperature):
    logits = torch.zeros(3, 1501)
    logits[1, column] = value
    with pytest.raises(BackendError, match="NaN or infinite logits for b"):
        sample(logits, [ask(name, temperature=temperature) for name in "abc"])


def test_a_row_of_minus_infinity_is_an_error_but_single_ones_are_not():
    logits = torch.full((1, 40), -math.inf)
    with pytest.raises(BackendError, match="NaN or infinite"):
        sample(logits, [ask()])
    logits[0, 33] = -5.0
    for temperature in (0.0, 1.0):
        output = sample(logits, [ask(temperature=temperature, top_p=0.9, logprobs=2)])
        assert output.tokens == [33]
        assert output.logprobs == pytest.approx([0.0], abs=1e-6)
