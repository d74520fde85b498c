import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError, DataError
from steelyard.plan.tradeoff.configuration import BASELINE, Configuration
from steelyard.plan.tradeoff.prompts import Surprisal, prompt_tokens, retrieved, selective
from steelyard.plan.tradeoff.tasks import TASKS, Template, draw_questions, draw_texts

TEXT = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 60, dtype=np.uint8)
TEXT = TEXT.astype(np.int64)
BEGINS = np.zeros(256, dtype=bool)
BEGINS[[32, 10]] = True


def encode(text):
    return list(text.encode())


def draw(task, length=256, count=4, seed=0, template=None):
    return draw_questions(
        task,
        length,
        count,
        text=TEXT,
        encode=encode,
        template=template or Template(),
        seed=seed,
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [256, 700])
def test_contexts_have_their_length_and_hold_the_answer(task, length):
    for item in draw(task, length):
        assert len(item.context) + len(item.question) == length
        context, question = bytes(item.context).decode(), bytes(item.question).decode()
        value = bytes(item.answer).decode()
        key = question.removeprefix("The code of ").removesuffix(" is")
        if task == "tracking":
            other = context.split(f"code of {key} is that of ")[1].split(".")[0]
            assert context.index(f"of {other} is{value}.") < context.index(f"of {key} is that")
        else:
            assert f"The code of {key} is{value}.\n" in context
        assert context.count("The code of") == (
            1 if task == "needle" else max(3, length // 64) + (task == "tracking")
        )


def test_needles_cover_all_depths_and_seeds_decide_everything():
    depths = [
        bytes(item.context).index(b"The code of") / len(item.context)
        for item in draw("needle", 600, 8)
    ]
    assert depths == sorted(depths) and depths[0] < 0.15 and depths[-1] > 0.7
    assert draw("recall") == draw("recall")
    assert draw("recall") != draw("recall", seed=1)


def test_text_is_cut_into_context_and_what_follows():
    for item in draw_texts(300, 3, text=TEXT, seed=1):
        row = [*item.context, *item.question, *item.answer]
        assert len(row) == 300 and bytes(row) in bytes(TEXT.astype(np.uint8))


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(DataError, match="tokens of text"):
        draw("needle", 10_000)
    with pytest.raises(ConfigError, match="do not fit"):
        draw("recall", 64)
    with pytest.raises(ConfigError, match=r"lacks \{value\}"):
        Template(define="{key}")
    with pytest.raises(ConfigError, match="has 16"):
        draw("recall", 1600, template=Template(keys="ab", key_length=4))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 255), min_size=1, max_size=300),
    st.floats(0.05, 0.95),
    st.integers(0, 5),
)
def test_shortened_contexts_are_parts_in_order_and_no_longer_than_asked(tokens, kept, seed):
    draws = np.random.default_rng(seed).random(len(tokens))
    for short in (
        selective(tokens, kept, lambda row: draws[: len(row)], BEGINS),
        retrieved(tokens, tokens[:5], kept),
    ):
        assert len(short) <= kept * len(tokens) + 1e-9
        rest = iter(tokens)
        assert all(token in rest for token in short)


def test_what_is_surprising_stays_and_what_the_question_names_is_found(tiny):
    score = Surprisal(tiny, BEGINS)
    losses = score(encode("a b c" * 80))
    assert losses.shape == (400,) and (losses >= 0).all() and losses[0] == losses[64] == 0
    words = encode("the dog saw zqx the dog")
    rare = {ord(letter): 9.0 for letter in "zqx"}
    short = selective(
        words, 0.4, lambda row: np.array([rare.get(token, 0.1) for token in row]), BEGINS
    )
    assert b"zqx" in bytes(short)
    item = draw("needle", 600, template=Template(define="{key}{value}.", ask="{key}"))[2]
    chosen = Configuration(name="r", prompt="retrieved", prompt_kept=0.25)
    short = prompt_tokens(item.context, item.question, chosen, score)
    assert bytes(item.answer) in bytes(short) and len(short) < 0.25 * 600 + len(item.question)
    whole = prompt_tokens(item.context, item.question, BASELINE, score)
    assert whole == [*item.context, *item.question]
