import math

import numpy as np
import pytest

from steelyard.data.evaluate import Evaluator
from steelyard.data.metrics import accuracy, bleu, perplexity, rouge, token_f1
from steelyard.data.tasks import ByteVocabulary, Feature, Generated, Records, Task, TaskMixture
from steelyard.data.tasks.synthetic import add, reverse
from steelyard.errors import BackendError, ConfigError, DataError
from steelyard.files import read_json

BYTES = ByteVocabulary()
PAIR = {"inputs": Feature(vocabulary=BYTES), "targets": Feature(vocabulary=BYTES)}


def task(name, make, **fields):
    return Task(name=name, source=Generated(make=make, size=40), features=PAIR, **fields)


def solve(examples):
    """Answer both tasks rightly, as tokens with an end and what a model says after it."""
    answers = []
    for example in examples:
        kind, _, rest = BYTES.decode(example["inputs"]).partition(": ")
        text = rest[::-1] if kind == "reverse" else str(sum(map(int, rest.split(" + "))))
        answers.append(np.concatenate([BYTES.encode(text), [1], BYTES.encode("noise")]))
    return answers


def test_known_answers_score_fully_and_wrong_ones_do_not():
    sums = task("sums", add, metrics=(accuracy,), postprocess=int)
    words = task("words", reverse, metrics=(accuracy, token_f1))
    evaluator = Evaluator(TaskMixture("m", ((sums, 1.0), (words, 2.0))), batch_size=7)
    assert evaluator.evaluate(solve) == {
        "sums": {"accuracy": 1.0},
        "words": {"accuracy": 1.0, "f1": 1.0, "exact_match": 1.0},
    }
    assert all(isinstance(target, int) for target in evaluator.targets["sums"])
    half = evaluator.evaluate(
        lambda examples: ["7" if i % 2 else answer for i, answer in enumerate(solve(examples))]
    )
    assert 0.5 <= half["sums"]["accuracy"] < 0.7


def test_targets_are_read_once_and_results_are_kept_by_step(tmp_path):
    reads = []

    def counted(record):
        reads.append(1)
        return record

    held = task("sums", add, steps=(counted,), metrics=(accuracy,), score_metrics=(perplexity,))
    evaluator = Evaluator(held, limit=10)
    assert len(evaluator.targets["sums"]) == len(reads) == 10
    for step in (5, 6, 5):
        evaluator.evaluate(
            solve, lambda some: [(-math.log(4) * 3, 3)] * len(some), step=step, out=tmp_path / "r"
        )
    assert len(reads) == 10
    kept = read_json(tmp_path / "r")
    assert [entry["step"] for entry in kept] == [6, 5]
    assert kept[0]["results"]["sums"] == {"accuracy": 1.0, "perplexity": pytest.approx(4)}


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match="no task of 'sums' has metrics"):
        Evaluator(task("sums", add))
    evaluator = Evaluator(task("sums", add, metrics=(accuracy,)))
    with pytest.raises(ConfigError, match="need a predict function"):
        evaluator.evaluate()
    with pytest.raises(DataError, match="returned 1 results for 40 examples"):
        evaluator.evaluate(lambda examples: ["7"])
    with pytest.raises(ConfigError, match="limit of 0"):
        Evaluator(task("sums", add, metrics=(accuracy,)), limit=0)
    for metric in (accuracy, token_f1, rouge, perplexity):
        with pytest.raises(DataError, match="0 targets with 0"):
            metric([], [])
        with pytest.raises(DataError, match="2 targets with 1"):
            metric(["a", "b"], ["a"])


def test_metrics_on_known_cases():
    assert token_f1(["The cat, sat."], ["a cat stood"]) == {"f1": 0.5, "exact_match": 0.0}
    assert token_f1(["the"], [""]) == {"f1": 1.0, "exact_match": 1.0}
    # Lin 2004, section 3.1: the longest common subsequence of S1 and S2 has 3 of 4 words.
    lin = rouge(["police killed the gunman"], ["police kill the gunman"])
    assert lin == pytest.approx({"rouge1": 0.75, "rouge2": 1 / 3, "rougeL": 0.75})
    assert rouge(["police killed the gunman"], ["the gunman kill police"])["rougeL"] == 0.5
    assert perplexity(["a", "b"], [(-2.0, 1), (-4.0, 2)]) == {
        "perplexity": pytest.approx(math.e**2)
    }
    assert perplexity(["a"], [(-math.inf, 1)]) == {"perplexity": math.inf}
    with pytest.raises(DataError, match="0 tokens"):
        perplexity(["a"], [(0.0, 0)])


def test_bleu_is_that_of_sacrebleu_or_says_how_to_get_it():
    try:
        import sacrebleu  # noqa: F401
    except ImportError:
        with pytest.raises(BackendError, match="needs sacrebleu"):
            bleu(["a"], ["a"])
    else:
        assert bleu(["the cat sat on the mat"], ["the cat sat on the mat"])["bleu"] > 99


def test_text_passes_where_no_end_is_added():
    plain = {"targets": Feature(vocabulary=BYTES, add_end=False)}
    held = Task(name="t", source=Records([{"targets": "ab"}]), features=plain, metrics=(accuracy,))
    assert Evaluator(held).evaluate(lambda some: [BYTES.encode("ab")]) == {"t": {"accuracy": 1.0}}
