import functools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.schedule import Interleave
from steelyard.data.tasks import (
    ByteVocabulary,
    Feature,
    Generated,
    JsonLines,
    PassthroughVocabulary,
    Records,
    Task,
    TaskMixture,
    TextFiles,
    TextLines,
    TokenizerVocabulary,
    by_examples,
)
from steelyard.data.tasks.keys import key_of
from steelyard.data.tasks.steps import corrupt_spans, documents, rename, span_mask, split_tokens
from steelyard.data.tasks.synthetic import add, copy, reverse
from steelyard.data.tokenizer import train_tokenizer
from steelyard.errors import ConfigError, DataError

BYTES = ByteVocabulary(sentinels=100)
TARGETS = {"targets": Feature(vocabulary=BYTES)}
PAIR = {"inputs": Feature(vocabulary=BYTES), "targets": Feature(vocabulary=BYTES)}


def words(count: int, name: str = "words", **fields) -> Task:
    records = [{"targets": f"example {number} " * (1 + number % 5)} for number in range(count)]
    return Task(**({"name": name, "source": Records(records), "features": TARGETS} | fields))


@given(st.text())
@settings(max_examples=80, deadline=None)
def test_vocabularies_give_texts_back(text):
    assert BYTES.decode(np.append(BYTES.encode(text), [1, 0, 0, BYTES.size - 1])) == text
    assert BYTES.encode(text).max(initial=0) < BYTES.size - BYTES.sentinels


def test_a_trained_tokenizer_is_a_vocabulary(tmp_path):
    tokenizer = train_tokenizer(["the rain in spain " * 9], 280)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    vocabulary = TokenizerVocabulary(folder=tmp_path, sentinels=5)
    ids = vocabulary.encode("rain, ü")
    assert vocabulary.size == tokenizer.get_vocab_size() + 5
    assert vocabulary.decode(np.append(ids, [vocabulary.end, vocabulary.size - 1])) == "rain, ü"
    assert vocabulary.key != TokenizerVocabulary(folder=tmp_path).key
    with pytest.raises(DataError, match="no such file"):
        _ = TokenizerVocabulary(folder=tmp_path / "none").key


def test_sources_give_any_record_by_its_number(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r\n\ntwo\nthree")
    (tmp_path / "empty.txt").write_bytes(b"")
    lines = TextLines(tmp_path / "a.txt", tmp_path / "empty.txt")
    assert [lines[i]["text"] for i in range(len(lines))] == ["one", "two", "three"]
    (tmp_path / "b.jsonl").write_text('{"inputs": "1", "ids": [1, 2]}\n[3]\n{bad\n')
    objects = JsonLines(tmp_path / "b.jsonl")
    assert objects[0]["ids"].tolist() == [1, 2]
    with pytest.raises(DataError, match=r"b\.jsonl at byte 31: a line holds a list"):
        _ = objects[1]
    with pytest.raises(DataError, match="not JSON"):
        _ = objects[2]
    (tmp_path / "c.txt").write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="not UTF-8"):
        _ = TextLines(tmp_path / "c.txt")[0]
    (tmp_path / "d.txt").write_bytes(b"a\0b")
    assert TextFiles(tmp_path / "d.txt")[0] == {"text": ""}
    key = lines.key
    (tmp_path / "a.txt").write_text("other")
    assert TextLines(tmp_path / "a.txt", tmp_path / "empty.txt").key != key
    sums = Generated(make=add, size=5, seed=1)
    assert sums[3] == Generated(make=add, size=9, seed=1)[3] != Generated(make=add, size=5)[3]
    one, other = sums[3]["inputs"].removeprefix("add: ").split(" + ")
    assert int(one) + int(other) == int(sums[3]["targets"])
    for source in (lines, sums, Records([])):
        with pytest.raises(IndexError):
            _ = source[len(source)]


def test_an_example_is_encoded_and_ended():
    example = words(3).read(1)
    assert BYTES.decode(example["targets"]) == "example 1 example 1 "
    assert example["targets"].dtype == np.int32 and example["targets"][-1] == 1
    assert "extra" in words(3, steps=(lambda record: {**record, "extra": b"x"},)).read(0)


def test_steps_draw_from_the_seed_the_epoch_their_place_and_the_example():
    def noisy(record, rng):
        return {"targets": rng.integers(3, 250, 6)}

    task = words(4, steps=(noisy,))
    draws = {
        (task.name, seed, epoch, index): task.read(index, seed=seed, epoch=epoch)["targets"]
        for task in (task, words(4, "others", steps=(noisy,)))
        for seed in (0, 1)
        for epoch in (0, 1)
        for index in range(4)
    }
    assert len({draw.tobytes() for draw in draws.values()}) == len(draws)
    assert np.array_equal(task.read(2, seed=1)["targets"], draws["words", 1, 0, 2])
    twice = words(4, steps=(noisy, lambda record, rng: {"targets": rng.integers(3, 250, 6)}))
    assert not np.array_equal(twice.read(0)["targets"], task.read(0)["targets"])


def test_all_violations_of_a_task_are_listed_at_once():
    with pytest.raises(ConfigError) as caught:
        Task(
            name="a b",
            source=Records([]),
            features={
                "inputs": Feature(vocabulary=BYTES, dtype="float32"),
                "targets": Feature(vocabulary=PassthroughVocabulary(size=999), dtype="int8"),
            },
            steps=(3,),
        )
    for part in ("'a b'", "float32", "int8 cannot hold", "vocabulary has none", "not callable"):
        assert part in str(caught.value)
    for record, message in (
        ({"inputs": "a"}, "'targets' is missing; it has inputs"),
        ({"inputs": 3, "targets": "b"}, "'inputs' is int, not an array"),
        ({"inputs": np.ones(2), "targets": np.zeros((2, 2), int)}, "float64 [2], not integers"),
        ({"inputs": np.array([400]), "targets": np.array([5, 1])}, "id 400 outside"),
        ({"inputs": np.array([4, 1]), "targets": np.array([5, 1])}, "would end twice"),
    ):
        task = Task(name="t", source=Records([record]), features=PAIR)
        with pytest.raises(DataError) as caught:
            task.read(0)
        assert message in str(caught.value)
        with pytest.raises(DataError):
            task.check()
    assert "'inputs'" in str(caught.value) and "'targets'" in str(caught.value)


def test_tasks_that_drop_or_split_say_that_they_need_a_cache():
    task = words(3, prepare=(lambda record: [record, record],))
    with pytest.raises(DataError, match="became 2 records"):
        task.read(0)
    with pytest.raises(DataError, match="became 0 records"):
        words(3, prepare=(lambda record: None,)).read(0)
    with pytest.raises(DataError, match="returned list, not one record"):
        words(3, steps=(lambda record: [record],)).read(0)
    with pytest.raises(DataError, match="no records"):
        words(0).check()


CONSTANT = 3


def helper(record):
    return {**record, "more": CONSTANT}


def test_a_key_changes_with_what_a_step_does(monkeypatch):
    def made(size):
        return lambda record: record[:size]

    alike = [key_of(functools.partial(rename, fields={"a": "b", "c": "d"})) for _ in range(2)]
    assert alike[0] == alike[1] == key_of(functools.partial(rename, fields={"c": "d", "a": "b"}))
    keys = [
        alike[0],
        key_of(functools.partial(rename, fields={"a": "c"})),
        key_of(made(1)),
        key_of(made(2)),
        key_of(helper),
        key_of(np.arange(3)),
        key_of(np.arange(3.0)),
        key_of([1, 2]),
        key_of(["1", 2]),
        key_of(BYTES),
        key_of(len),
    ]
    assert len(set(keys)) == len(keys)
    monkeypatch.setitem(helper.__globals__, "CONSTANT", 4)
    assert key_of(helper) not in keys
    with pytest.raises(ConfigError, match="cannot tell when"):
        key_of(object())


def test_keys_of_tasks_follow_what_a_cache_holds():
    base = words(3).key
    assert words(3, name="other", steps=(helper,)).key == base
    others = [words(4), words(3, prepare=(helper,))]
    others += [words(3, features={"targets": Feature(vocabulary=ByteVocabulary())})]
    assert len({base, *(task.key for task in others)}) == 4


def test_documents_and_pieces_lose_nothing():
    text = "\n\n".join(f"{number} some words that make a paragraph " * 3 for number in range(20))
    pieces = documents({"text": text}, limit=400)
    assert "".join("".join(p["text"] for p in pieces).split()) == "".join(text.split())
    cut = split_tokens({"targets": text}, vocabulary=BYTES, length=50)
    assert BYTES.decode(np.concatenate([piece["targets"] for piece in cut])) == text
    assert {len(piece["targets"]) for piece in cut[:-1]} == {50}
    with pytest.raises(DataError, match="has no question; it has text"):
        rename({"text": "a"}, fields={"inputs": "question"})


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 300), st.floats(0.01, 0.9), st.floats(1, 8), st.integers(0, 99))
def test_spans_cover_the_share_asked_and_can_be_put_back(length, density, mean_span, seed):
    rng = np.random.default_rng(seed)
    mask = span_mask(length, rng, density=density, mean_span=mean_span)
    assert mask.sum() == min(max(round(length * density), 1), length - 1) and not mask[0]
    tokens = rng.integers(3, 259, length)
    size = 259 + 300
    made = corrupt_spans({"targets": tokens}, rng, size=size, density=density, mean_span=mean_span)
    spans = {}
    for token in made["targets"].tolist():
        if token >= 259:
            spans[token] = current = []
        else:
            current.append(token)
    whole = [spans.get(token, [token]) for token in made["inputs"].tolist()]
    assert [token for part in whole for token in part] == tokens.tolist()
    assert list(spans) == [size - 1 - number for number in range(len(spans))]


def test_spans_are_uniform():
    """All masks with the same counts are equally likely."""
    masks = [
        tuple(span_mask(6, np.random.default_rng(seed), density=0.5, mean_span=1.5))
        for seed in range(3000)
    ]
    counts = np.unique(np.array(masks), axis=0, return_counts=True)[1]
    # 2 spans of 3 tokens among 3 that stay: 2 compositions of either kind.
    assert len(counts) == 4 and counts.min() > 650


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(0, 10**9))
def test_an_interleave_serves_shares_and_counts_every_part_up(rates, start):
    order = Interleave(rates)
    parts, ordinals = order(np.arange(5000))
    shares = np.array(rates) / sum(rates)
    for part, share in enumerate(shares):
        mine = ordinals[parts == part]
        assert np.array_equal(mine, np.arange(len(mine)))
        assert abs(len(mine) - 5000 * share) <= len(rates) + 0.01
    again = order(np.arange(start, start + 50))
    for place in range(0, 50, 7):
        one = order(np.array([start + place]))
        assert (one[0][0], one[1][0]) == (again[0][place], again[1][place])


def test_plain_ratios_are_exact_and_impossible_rates_refused():
    assert Interleave([3, 1]).period == 4
    assert Interleave([0.3, 0.7]).period == 10
    assert [str(Fraction(share).limit_denominator(9)) for share in Interleave([2, 4]).shares] == [
        "1/3",
        "2/3",
    ]
    for rates in ([], [0, 1], [-1], [float("nan")], [1, 1e-9]):
        with pytest.raises(ConfigError):
            Interleave(rates)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (100, 10_000, 1_000_000)),
        ({"scale": 2.0}, (200, 20_000, 2_000_000)),
        ({"maximum": 5000}, (100, 5000, 5000)),
        ({"scale": 3.0, "maximum": 5000}, (300, 5000, 5000)),
        ({"temperature": 2.0}, (10, 100, 1000)),
        ({"scale": 4.0, "maximum": 10_000, "temperature": 2.0}, (20, 100, 100)),
    ],
)
def test_rates_by_examples(options, expected):
    """Scaled first, clipped then, tempered last, as seqio's mixing_rate_num_examples does."""
    rate = by_examples(**options)
    assert [rate(count) for count in (100, 10_000, 1_000_000)] == pytest.approx(expected)


def test_nested_mixtures_split_their_rate_and_tasks_reached_twice_add():
    a, b, c = words(100, "a"), words(300, "b"), words(50, "c")
    inner = TaskMixture("inner", ((a, by_examples()), (b, by_examples())))
    outer = TaskMixture("outer", ((inner, 8.0), (a, 1.0), (c, by_examples(maximum=5))))
    assert outer.rates() == pytest.approx({"a": 3.0, "b": 6.0, "c": 5.0})
    assert [task.name for task in outer.tasks] == ["a", "b", "c"]
    assert TaskMixture("by size", ((inner, by_examples(temperature=2.0)),)).rates() == (
        pytest.approx({"a": 5.0, "b": 15.0})
    )


def test_all_violations_of_a_mixture_are_listed_at_once():
    other = words(3, "b", features={"targets": Feature(vocabulary=ByteVocabulary())})
    pair = Task(name="c", source=Records([{"inputs": "a", "targets": "b"}]), features=PAIR)
    a = words(3, "a")
    parts = ((a, 1.0), (words(3, "a"), 1.0), (other, -1.0), (pair, 2.0), (words(0, "d"), 1.0))
    with pytest.raises(ConfigError) as caught:
        TaskMixture("m", parts)
    message = str(caught.value)
    for part in ("named 'a'", "rate of 'b' is -1.0", "other vocabularies", "features of 'a'"):
        assert part in message
    assert "'d' has no examples" in message
    with pytest.raises(ConfigError, match="no parts"):
        TaskMixture("m", ())
    with pytest.raises(ConfigError, match="temperature = 0"):
        by_examples(temperature=0)


def test_synthetic_answers_follow_from_their_questions():
    rng = np.random.default_rng(0)
    same, turned, total = copy(rng), reverse(rng), add(rng)
    assert same["inputs"] == f"copy: {same['targets']}"
    assert turned["inputs"] == f"reverse: {turned['targets'][::-1]}"
    assert sum(map(int, total["inputs"][5:].split(" + "))) == int(total["targets"])
