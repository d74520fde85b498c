import json
import re
import time

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from steelyard.catalog.architecture import Architecture
from steelyard.errors import BackendError, ConfigError
from steelyard.nn.transformer import build
from steelyard.serve.engine import LLM
from steelyard.serve.running.grammar import Grammars, GrammarState, spell
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan

pytest.importorskip("llguidance")
VOCAB = 420
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    made.train_from_iterator(
        ['{"name": "anna", "age": 31}'] * 20 + ["hello world, true or false"] * 20, trainer
    )
    return made


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(tokenizer, VOCAB, (0,))


def step(sampler, requests, logits):
    """Sample one token of each request, as the scheduler would take it; an end token ends it."""
    none = np.zeros(0, dtype=np.int64)
    plan = StepPlan(
        request_ids=[],
        num_decodes=0,
        token_ids=none,
        positions=none,
        slot_mapping=none,
        query_lengths=none,
        context_lengths=none,
        block_tables=none,
        sample_rows=none,
        sampled=requests,
        output_positions=np.array([len(request.output) for request in requests], dtype=np.int64),
    )
    output = sampler.sample(logits.clone(), plan)
    for request, token in zip(requests, output.tokens.tolist(), strict=True):
        request.take(token, 0.0)
    return output


def run(grammars, tokenizer, specs, steps=200, seed=0, **params):
    generator, sampler = torch.Generator().manual_seed(seed), Sampler(grammars)
    requests = [
        Request(
            id=str(row),
            prompt=[1],
            params=SamplingParams(
                grammar=spec, max_tokens=steps, stop_tokens=(0,), seed=row, **params
            ),
        )
        for row, spec in enumerate(specs)
    ]
    live = requests
    while live:
        output = step(sampler, live, torch.randn(len(live), VOCAB, generator=generator) * 2)
        assert output.errors == {}
        live = [request for request in live if request.finish_reason is None]
    return [(request, tokenizer.decode(request.output)) for request in requests]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_follow_their_grammars(grammars, tokenizer, temperature):
    lark = 'start: "a" start "b" | "c"'
    specs = [
        spell("json_schema", PERSON),
        spell("regex", "[a-f]{3,9}-[0-9]+x"),
        spell("choice", ["yes", 'n"o']),
        spell("lark", lark),
    ]
    results = run(grammars, tokenizer, specs * 2, temperature=temperature)
    checks = [
        lambda text: (
            set(json.loads(text)) == {"name", "age"} and 0 <= json.loads(text)["age"] <= 150
        ),
        lambda text: re.fullmatch("[a-f]{3,9}-[0-9]+x", text),
        lambda text: text in ("yes", 'n"o'),
        lambda text: re.fullmatch("(a*)c(b*)", text) and text.count("a") == text.count("b"),
    ]
    ended = [0] * 4
    for row, (request, text) in enumerate(results):
        if request.finish_reason == "stop":
            ended[row % 4] += 1
            assert checks[row % 4](text), text
    assert min(ended) > 0


def test_any_json_object(grammars, tokenizer):
    results = run(grammars, tokenizer, ["json_object"] * 4, steps=400, temperature=1.0)
    done = [json.loads(text) for request, text in results if request.finish_reason == "stop"]
    assert done
    assert all(isinstance(item, dict) for item in done)


def test_state_survives_recompute_forks_and_replaced_outputs(grammars, tokenizer):
    spec = spell("json_schema", PERSON)
    [(request, _)] = run(grammars, tokenizer, [spec], temperature=1.0, seed=3)

    def mask(state, length):
        bits = np.zeros(-(-VOCAB // 32), dtype=np.int32)
        assert state.fill(bits, length) == ""
        return bits.tolist()

    def fresh(item):
        return GrammarState(item, grammars._matcher(spec).deep_copy(), [0])

    followed, count = fresh(request), len(request.output)
    masks = [mask(followed, length) for length in range(count + 1)]
    assert mask(fresh(request), count) == masks[count]
    assert [mask(followed, length) for length in (2, count, 1, 0)] == [
        masks[length] for length in (2, count, 1, 0)
    ]
    other = Request(
        id="b", prompt=[1], params=request.params, output=tokenizer.encode('{"name": "bo').ids
    )
    request.output = list(other.output)
    assert mask(followed, len(other.output)) == mask(fresh(other), len(other.output))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("json_schema:{", "not JSON"),
        ('json_schema:"a"', "str in JSON"),
        ('json_schema:{"type": "zzz"}', "zzz"),
        ('json_schema:{"$ref": "#/none"}', "none"),
        ("regex:(a", "unclosed group"),
        ("regex:", "unknown grammar"),
        ("lark:start: foo", "foo"),
        ("choice:[]", "1 to 1000"),
        ("choice:[1]", "1 to 1000"),
        ("xml:<a>", "unknown grammar 'xml'"),
        ("regex:" + "a" * 200_000, "200006 characters"),
        ("regex:" + "(" * 5000 + "a" + ")" * 5000, "invalid regex"),
        ("json_schema:" + "[" * 90_000, "not JSON"),
    ],
)
def test_bad_grammars_are_refused_soon(grammars, spec, words):
    began = time.perf_counter()
    with pytest.raises(ConfigError, match=words):
        Sampler(grammars).check(SamplingParams(grammar=spec), VOCAB)
    assert time.perf_counter() - began < 2


def test_compiled_grammars_are_kept_but_not_without_bound(grammars):
    for number in range(70):
        grammars.check(spell("regex", f"a{number}"))
    assert len(grammars._compiled) == 64
    kept = grammars._matcher("regex:a69")
    assert grammars._matcher("regex:a69") is kept


def test_grammars_need_a_tokenizer_and_an_end_token(tokenizer):
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        Sampler().check(SamplingParams(grammar="json_object"), VOCAB)
    with pytest.raises(BackendError, match="no tokenizer"):
        step(
            Sampler(),
            [Request(id="a", prompt=[1], params=SamplingParams(grammar="json_object"))],
            torch.zeros(1, VOCAB),
        )
    with pytest.raises(ConfigError, match="ends an output"):
        Grammars(tokenizer, VOCAB, ())


def test_min_tokens_hold_the_end_back_only_while_something_else_is_allowed(grammars, tokenizer):
    results = run(
        grammars, tokenizer, [spell("regex", "a*"), spell("regex", "ab")], steps=30, min_tokens=20
    )
    assert [len(text) >= 20 for _, text in results] == [True, False]
    assert results[1][1] == "ab"


def test_an_output_that_left_its_grammar_is_an_error_of_its_row(grammars):
    params = SamplingParams(grammar="regex:[0-9]+", stop_tokens=(0,))
    requests = [
        Request(id="a", prompt=[1], params=params, output=[70, 71]),
        Request(id="b", prompt=[1], params=params),
    ]
    output = step(Sampler(grammars), requests, torch.zeros(2, VOCAB))
    assert list(output.errors) == [0]
    assert requests[0].finish_reason == "stop"


@pytest.fixture(scope="module")
def talker():
    """A tiny decoder with the tokenizer's vocabulary."""
    torch.set_num_threads(1)
    shape = {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
    }
    built = build(
        Architecture(
            name="talker", vocab_size=VOCAB, max_positions=256, tied_embeddings=False, **shape
        ),
        seed=1,
    )
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)
    return built


@pytest.mark.parametrize(
    ("num_blocks", "kind"),
    [(24, ""), (200, "ahead"), (24, "ahead"), (200, "guessing"), (24, "guessing")],
)
def test_engines_give_the_same_outputs_under_preemption_ahead_of_time_and_with_guesses(
    talker, grammars, know, num_blocks, kind
):
    prompts = [list(range(1 + row, 30 + row)) for row in range(6)]
    params = [
        SamplingParams(
            grammar=spell("json_schema", PERSON), temperature=1.0, seed=1, max_tokens=60
        ),
        SamplingParams(repetition_penalty=1.3, frequency_penalty=0.2, max_tokens=60),
        SamplingParams(grammar=spell("regex", "[a-z]{40,60}"), max_tokens=60, presence_penalty=0.5),
        SamplingParams(temperature=0.9, top_p=0.8, seed=3, max_tokens=60),
        SamplingParams(grammar="json_object", temperature=1.0, seed=9, max_tokens=60),
        SamplingParams(temperature=1.0, min_tokens=50, seed=4, max_tokens=60),
    ]

    def outputs(blocks, kind):
        config = SchedulerConfig(
            num_blocks=blocks, block_size=4, token_budget=40, max_num_seqs=6, max_model_len=90
        )
        llm = LLM(
            talker,
            config,
            end_tokens=(0,),
            sampler=Sampler(grammars),
            asynchronous=kind == "ahead",
            speculate="ngram" if kind == "guessing" else "off",
        )
        if kind == "guessing":
            know(llm, prompts, [[[tokens]] for tokens in expected])
        results = llm.generate(prompts, params)
        return [item.tokens for item in results], llm.stats()

    expected, plain = outputs(200, "")
    got, stats = outputs(num_blocks, kind)
    assert got == expected
    assert plain.preemptions == 0
    assert (stats.preemptions > 0) == (num_blocks < 100)
    assert (stats.accepted_tokens > 20) == (kind == "guessing")
    assert all(len(tokens) > 3 for tokens in expected)


@pytest.mark.parametrize(
    "family",
    [
        {"n": 3, "temperature": 1.0},
        {"best_of": 3, "temperature": 1.0, "logprobs": 2},
        {"beam_width": 3, "n": 2},
    ],
)
def test_forks_and_beams_follow_the_grammar(talker, tokenizer, grammars, family):
    config = SchedulerConfig(
        num_blocks=200, block_size=4, token_budget=40, max_num_seqs=6, max_model_len=90
    )
    llm = LLM(talker, config, end_tokens=(0,), sampler=Sampler(grammars))
    params = SamplingParams(
        grammar=spell("regex", "([a-c]|[x-z]{2}){3,12};"), max_tokens=40, seed=2, **family
    )
    results = llm.generate([[5, 6, 7], [8]], [params, params])
    texts = [tokenizer.decode(output.tokens) for item in results for output in item.outputs]
    assert len(texts) == 2 * params.n
    assert all(re.fullmatch("([a-c]|[x-z]{2}){3,12};", text) for text in texts), texts
    assert llm.stats().blocks_in_use == 0
