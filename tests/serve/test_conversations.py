import math

import numpy as np
import pytest
from benchmarks.serve._conversations import ConversationLoad, make_conversations

from steelyard.errors import ConfigError
from steelyard.serve.traces import TraceRow


def rows(count=50):
    generator = np.random.default_rng(3)
    return [
        TraceRow(
            arrival_s=0.0,
            input_tokens=int(generator.integers(8, 400)),
            output_tokens=int(generator.integers(8, 200)),
        )
        for _ in range(count)
    ]


def make(seed=0, **changes):
    settings = {
        "num_conversations": 200,
        "rate_per_s": 2.0,
        "vocab_size": 50,
        "length_scale": 1 / 8,
        "max_tokens": 512,
        **changes,
    }
    return make_conversations(rows(), np.random.default_rng(seed), **settings)


def test_turns_are_geometric_pauses_exponential_and_lengths_scaled():
    drawn = make(num_conversations=2000, max_tokens=10**6, mean_think_s=4.0)
    turns = [len(item.turns) for item in drawn]
    assert np.mean(turns) == pytest.approx(5.5, rel=0.06)
    assert np.var(turns) == pytest.approx(5.5 * 4.5, rel=0.15)
    assert np.mean([turn.think_s for item in drawn for turn in item.turns[1:]]) == pytest.approx(
        4.0, rel=0.05
    )
    assert all(item.turns[0].think_s == 0 for item in drawn)
    assert np.diff([item.start_s for item in drawn]).mean() == pytest.approx(0.5, rel=0.06)
    assert max(len(turn.question) for item in drawn for turn in item.turns) <= 50
    assert make(7) == make(7) != make(8)


def test_no_conversation_exceeds_the_limit():
    for item in make(max_tokens=100):
        assert sum(len(turn.question) + turn.output_tokens for turn in item.turns) <= 100


def test_a_question_comes_a_pause_after_the_answer_with_all_that_was_said():
    drawn = make(num_conversations=3, rate_per_s=1.0)
    load, now_s, sent = ConversationLoad(drawn), 0.0, {}
    while not load.is_done:
        now_s = max(now_s, load.next_s)
        for request in load.due(now_s):
            row, turn = (int(part) for part in request.id.split("/"))
            said = sent.get((row, turn - 1))
            if said:
                assert request.prompt[: len(said.prompt) + len(said.output)] == [
                    *said.prompt,
                    *said.output,
                ]
                assert request.arrival_s == pytest.approx(
                    said.last_token_s + drawn[row].turns[turn].think_s
                )
            assert load.due(now_s) == []
            request.output = [7] * request.params.max_tokens
            request.last_token_s = now_s + 0.5
            sent[row, turn] = request
            load.answered(request, now_s + 0.5)
    assert load.next_s == math.inf
    assert len(sent) == sum(len(item.turns) for item in drawn)


def test_impossible_conversations_are_refused():
    with pytest.raises(ConfigError, match="cannot build 0 sessions"):
        make(num_conversations=0)
    with pytest.raises(ConfigError, match="scale lengths by 0"):
        make(length_scale=0)
