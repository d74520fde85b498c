import errno
import random
import shutil
import time

import numpy as np
import pytest
import torch
from benchmarks.serve._conversations import Conversation, ConversationLoad, Turn
from benchmarks.serve._drawn_order import RandomPriorities

from steelyard.serve import SamplingParams, Scheduler, SchedulerConfig, TraceRequest, make_request
from steelyard.serve.engine import LLM
from steelyard.serve.kv.tiers import TieredKV, make_store
from steelyard.serve.running.native.library import compiled_library
from steelyard.serve.simulate import simulate


def decodes_as_prompts():
    """Whether the native kernels attend from decoding rows with the bits of prompts."""
    return shutil.which("g++") is not None and compiled_library().steelyard_level() == 3


class Unsteady:
    """A store that dawdles before and after each copy, and may fail."""

    def __init__(self, store, seed, failing=0.0):
        self.store, self.failing, self.num_blocks = store, failing, store.num_blocks
        self.random = random.Random(seed)

    def dawdle(self):
        time.sleep(self.random.choice([0.0, 0.0, 0.001, 0.004]))
        if self.random.random() < self.failing:
            raise OSError(errno.EIO, "input/output error")

    def put(self, block, piece, source):
        self.dawdle()
        done = self.store.put(block, piece, source)
        self.dawdle()
        return done

    def get(self, block, piece, target):
        self.dawdle()
        done = self.store.get(block, piece, target)
        self.dawdle()
        return done

    def close(self):
        self.store.close()


def config(**changes):
    base = {
        "num_blocks": 16,
        "block_size": 4,
        "token_budget": 24,
        "max_num_seqs": 8,
        "max_model_len": 48,
        "prefix_caching": False,
        "preemption": "swap",
        "host_blocks": 40,
        "update_every": 3,
    }
    return SchedulerConfig(**{**base, **changes})


def engine(model, limits, *, seed=0, failing=0.0, folder=None, asynchronous=False):
    llm = LLM(
        model, limits, asynchronous=asynchronous, make_policy=lambda: RandomPriorities(seed=seed)
    )
    llm.driver.tiers = TieredKV(
        llm.runner.kv,
        Unsteady(make_store(llm.runner.kv, limits.host_blocks, folder), seed, failing),
    )
    return llm


def prompts(count=6):
    generator = np.random.default_rng(4)
    return [
        generator.integers(0, 97, int(size)).tolist() for size in generator.integers(3, 24, count)
    ]


@pytest.fixture(scope="module")
def expected(greedy):
    return [greedy(prompt, 14) for prompt in prompts()]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"allocator": "block-group"},
        {"allocator": "paged", "reuse_host_copies": False},
        {"allocator": "block-group", "prefix_caching": True, "keep_turns": True, "host_blocks": 14},
    ],
    ids=["groups", "no reuse", "little room"],
)
def test_outputs_are_those_of_an_engine_that_never_preempts(
    model, expected, changes, asynchronous, tmp_path
):
    folder = tmp_path if changes["allocator"] == "paged" else None
    llm = engine(model, config(**changes), folder=folder, asynchronous=asynchronous)
    done = llm.generate(prompts(), SamplingParams(max_tokens=14, ignore_end=True))
    assert [item.tokens for item in done] == expected
    assert llm.stats().swaps > 0
    llm.driver.settle()
    llm.close()


def test_int8_keys_and_values_are_the_same_after_swaps_and_in_shared_prefixes(model):
    ask = SamplingParams(max_tokens=14, ignore_end=True)
    shared = [prompts()[0][:9] + prompt for prompt in prompts()]
    limits = config(preemption="recompute", host_blocks=0, num_blocks=96)
    expected = LLM(model, limits, kv_dtype=torch.int8).generate(shared, ask)
    tight = config(prefix_caching=True, keep_turns=True, host_blocks=400)
    llm = LLM(model, tight, kv_dtype=torch.int8, make_policy=lambda: RandomPriorities(seed=0))
    for _ in range(2):
        done = llm.generate(shared, ask)
        assert [item.tokens for item in done] == [item.tokens for item in expected]
    assert llm.stats().swaps > 0 and llm.stats().cached_prompt_tokens > 0
    llm.close()


@pytest.mark.skipif(not decodes_as_prompts(), reason="decoding rounds otherwise than prompts do")
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.int8])
def test_narrow_keys_and_values_are_the_same_after_they_are_computed_again(model, kind):
    ask = SamplingParams(max_tokens=14, ignore_end=True)
    limits = config(preemption="recompute", host_blocks=0, num_blocks=96)
    expected = LLM(model, limits, kv_dtype=kind).generate(prompts(), ask)
    tight = config(preemption="recompute", host_blocks=0)
    llm = LLM(model, tight, kv_dtype=kind, make_policy=lambda: RandomPriorities(seed=0))
    done = llm.generate(prompts(), ask)
    assert [item.tokens for item in done] == [item.tokens for item in expected]
    assert llm.stats().preemptions > 0
    llm.close()


def test_a_failing_device_costs_time_and_nothing_else(model, expected):
    llm = engine(model, config(), failing=0.15)
    done = llm.generate(prompts(), SamplingParams(max_tokens=14, ignore_end=True))
    assert [item.tokens for item in done] == expected
    tiers = llm.driver.tiers
    assert tiers.stats("out").failures + tiers.stats("in").failures > 0
    llm.close()


def test_aborts_at_any_time_leave_every_block_free(model):
    llm = engine(model, config(keep_turns=False))
    generator = np.random.default_rng(0)
    names = [
        llm.add_request(prompt, SamplingParams(max_tokens=14, ignore_end=True))
        for prompt in prompts(14)
    ]
    while llm.scheduler.has_work:
        llm.step()
        if generator.random() < 0.3:
            llm.abort(names[int(generator.integers(len(names)))])
    while llm.driver.tiers.num_under_way:
        llm.step()
    assert llm.scheduler.pool.num_available == 16
    assert llm.scheduler.swapper.host.pool.num_in_use == 0
    llm.close()


def test_the_next_turn_of_a_conversation_comes_from_the_host(model, greedy):
    generator = np.random.default_rng(1)
    turns = [
        Turn(question=generator.integers(0, 97, 6).tolist(), output_tokens=5, think_s=0.05)
        for _ in range(4)
    ]
    load = ConversationLoad(
        [Conversation(name=name, client=name, start_s=0.0, turns=turns) for name in "abc"]
    )
    llm = engine(model, config(keep_turns=True, update_every=0))
    finished = []
    while not load.is_done:
        now_s = llm.driver.now_s()
        for request in load.due(now_s):
            llm.add(request, now_s)
        for request in llm.step().finished:
            load.answered(request, now_s)
            finished.append(request)
    assert len(finished) == 12
    for request in finished:
        assert request.output == greedy(request.prompt, 5)
    assert llm.driver.tiers.stats("in").transfers > 0
    llm.close()


def test_the_same_scheduler_swaps_in_virtual_time():
    trace = [TraceRequest(arrival_s=0.0, prompt=prompt, output_tokens=20) for prompt in prompts(12)]

    def replay(transfer_s):
        scheduler = Scheduler(config(), policy=RandomPriorities(seed=0))
        seen = simulate(
            scheduler,
            trace,
            lambda plan: 0.01,
            make_request,
            transfer_time_s=lambda item: transfer_s * len(item.runs),
        )
        assert scheduler.num_swaps > 5
        assert scheduler.pool.num_available == 16
        return seen.timeline.last_token_s.max()

    assert replay(0.0) < replay(0.05)
