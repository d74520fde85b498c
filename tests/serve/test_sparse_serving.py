from dataclasses import replace

import numpy as np
import pytest
import torch

from steelyard.errors import CapacityError, ConfigError
from steelyard.serve.build import make_engine
from steelyard.serve.options import EngineOptions
from steelyard.serve.scheduling.fairness import VTC
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.sparse.controller import Controller
from steelyard.serve.sparse.engine import SparseDecoder
from steelyard.serve.sparse.policies import H2O, Adore, Sinks, TopK, Window
from steelyard.serve.sparse.serving import CACHES, bounded_engine
from steelyard.serve.sparse.training import ControllerModule

POLICIES = {
    "window": Window(20),
    "sinks": Sinks(20),
    "h2o": H2O(20),
    "topk": TopK(20),
    "adaptive": Adore(20),
}
SIZES = (5, 33, 20, 1, 47, 31)


OPTIONS = EngineOptions(cache="window", cache_tokens=20, pool_bytes=2**20, max_model_len=70)


@pytest.fixture(scope="module")
def controller_path(model, tmp_path_factory):
    torch.manual_seed(0)
    module = ControllerModule(model.embedding.weight, 16, 8)
    path = tmp_path_factory.mktemp("controller") / "controller.safetensors"
    module.export(model.architecture.hidden_size).save(path)
    return path


@pytest.fixture(scope="module")
def options(controller_path):
    def make(cache, **changes):
        path = controller_path if cache == "adaptive" else None
        return replace(OPTIONS, cache=cache, cache_controller=path, **changes)

    return make


def make_prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 97, size).tolist() for size in SIZES]


def tokens_of(llm, prompts, params):
    return [item.outputs[0].tokens for item in llm.generate(prompts, params)]


@pytest.mark.parametrize("cache", CACHES)
def test_the_engine_returns_what_the_decoder_alone_returns(
    model, options, controller_path, complete, cache
):
    decoder = SparseDecoder(
        model,
        POLICIES[cache],
        num_requests=1,
        max_length=70,
        controller=Controller.load(controller_path) if cache == "adaptive" else None,
    )
    llm = bounded_engine(model, options(cache))
    found = tokens_of(llm, make_prompts(), SamplingParams(max_tokens=12))
    assert found == complete(decoder, make_prompts(), 12)


@pytest.mark.parametrize("cache", CACHES)
def test_a_cache_that_holds_everything_equals_full_attention(model, options, greedy, cache):
    llm = bounded_engine(model, options(cache, cache_tokens=120, max_model_len=0))
    prompts = make_prompts()
    expected = [greedy(prompt, 8) for prompt in prompts]
    assert tokens_of(llm, prompts, SamplingParams(max_tokens=8)) == expected


@pytest.mark.parametrize("changes", [{"token_budget": 7}, {"asynchronous": True}])
def test_tokens_do_not_depend_on_batch_budget_or_planning_ahead(model, options, changes):
    params = [
        SamplingParams(max_tokens=10, temperature=1.0, seed=seed, top_p=0.9)
        for seed in range(len(SIZES))
    ]
    llm = bounded_engine(model, options("h2o", **changes))
    together = tokens_of(llm, make_prompts(), params)
    alone = bounded_engine(model, options("h2o"))
    for prompt, item, found in zip(make_prompts(), params, together, strict=True):
        assert tokens_of(alone, [prompt], item) == [found]


def test_slabs_are_used_again_and_bound_the_requests_side_by_side(model, options):
    llm = bounded_engine(model, options("window"))
    one = llm.runner.kv.nbytes // llm.config.num_blocks
    tight = bounded_engine(model, options("window", pool_bytes=3 * one + one // 2))
    assert tight.config.num_blocks == 3
    assert tight.config.max_num_seqs == 2
    params = SamplingParams(max_tokens=5, ignore_end=True)
    prompts = make_prompts() * 2
    assert tokens_of(tight, prompts, params) == tokens_of(llm, prompts, params)
    single = bounded_engine(model, options("window", pool_bytes=one))
    assert tokens_of(single, prompts[:2], params) == tokens_of(llm, prompts[:2], params)


def test_an_aborted_request_leaves_its_slab_clean(model, options):
    llm = bounded_engine(model, options("h2o", asynchronous=True))
    params = SamplingParams(max_tokens=8, ignore_end=True)
    prompt = make_prompts()[1]
    expected = tokens_of(llm, [prompt], params)
    name = llm.add_request(make_prompts()[4], params)
    for _ in range(3):
        llm.step()
    assert llm.abort(name)
    assert tokens_of(llm, [prompt], params) == expected


def test_what_a_bounded_cache_cannot_do_is_refused(model, options, controller_path):
    llm = bounded_engine(model, options("window"))
    for params in (
        SamplingParams(n=2),
        SamplingParams(best_of=2),
        SamplingParams(beam_width=1),
    ):
        with pytest.raises(ConfigError, match="one output per request"):
            llm.generate([[1]], params)
    for changes, match in (
        ({"cache": "all"}, "must be full, window, sinks"),
        ({"cache_tokens": -1}, "at least 0"),
        ({"preemption": "swap"}, "--preemption needs --cache full"),
        ({"cache_controller": controller_path}, "--cache-controller needs --cache adaptive"),
        ({"cache": "adaptive"}, "--cache adaptive needs --cache-controller"),
        ({"max_model_len": 10_000}, "positions"),
    ):
        with pytest.raises(ConfigError, match=match):
            bounded_engine(model, replace(OPTIONS, **changes))
    with pytest.raises(CapacityError, match="hold no slab"):
        bounded_engine(model, options("window", pool_bytes=100))


def test_the_order_of_the_options_holds_for_a_bounded_cache(model, options):
    chosen = options("window", policy="vtc", client_weights={"a": 2.0}, max_num_seqs=1)
    llm = make_engine(model, chosen)
    assert isinstance(llm.scheduler.policy, VTC)
    assert llm.config.max_num_seqs == 1
    plain = bounded_engine(model, options("window"))
    params = SamplingParams(max_tokens=6)
    assert tokens_of(llm, make_prompts(), params) == tokens_of(plain, make_prompts(), params)
