"""How good predictions are: functions of targets and predictions, or of targets and scores."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from steelyard.errors import BackendError, DataError

__all__ = ["accuracy", "bleu", "perplexity", "rouge", "token_f1"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORD = re.compile(r"[a-z0-9]+")


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Return the share of predictions equal to their target, 0..1, as "accuracy"."""
    equal = [target == found for target, found in _pairs(targets, predictions)]
    return {"accuracy": sum(equal) / len(equal)}


def token_f1(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Return the mean overlap of words and the share of exact matches, as "f1" and "exact_match".

    Texts are compared in lower case, without punctuation and articles.

    Args:
        targets: texts, at least one.
        predictions: text for each.

    Returns:
        Both in 0..1; two texts without words agree.

    Raises:
        DataError: there is nothing to compare, or not one prediction per target.

    Source: Rajpurkar et al. 2016 (SQuAD, arXiv 1606.05250), section 6.1.
    """
    pairs = [(_normal(target), _normal(found)) for target, found in _pairs(targets, predictions)]
    return {
        "f1": _mean(_f1, pairs),
        "exact_match": _mean(lambda target, found: float(target == found), pairs),
    }


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Return mean F1 of shared words, word pairs and longest common subsequences.

    Args:
        targets: texts, at least one.
        predictions: text for each.

    Returns:
        "rouge1", "rouge2" and "rougeL", 0..1; words are runs of ASCII letters and digits in lower
        case, without stemming.

    Raises:
        DataError: there is nothing to compare, or not one prediction per target.

    Source: Lin 2004 (ROUGE), sections 2 and 3.1.
    """
    pairs = [
        (_WORD.findall(target.lower()), _WORD.findall(found.lower()))
        for target, found in _pairs(targets, predictions)
    ]
    doubled = [(list(pairwise(one)), list(pairwise(two))) for one, two in pairs]
    return {
        "rouge1": _mean(_f1, pairs),
        "rouge2": _mean(_f1, doubled),
        "rougeL": _mean(_sequence_f1, pairs),
    }


def bleu(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Return the corpus BLEU of sacrebleu, 0..100, as "bleu".

    Args:
        targets: texts, at least one.
        predictions: text for each.

    Returns:
        The score.

    Raises:
        BackendError: sacrebleu is not installed.
        DataError: there is nothing to compare, or not one prediction per target.

    Source: Post 2018 (arXiv 1804.08771).
    """
    try:
        import sacrebleu  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise BackendError("BLEU needs sacrebleu", hint="pip install sacrebleu") from error
    pairs = _pairs(targets, predictions)
    found = sacrebleu.corpus_bleu([two for _, two in pairs], [[one for one, _ in pairs]])
    return {"bleu": float(found.score)}


def perplexity(targets: Sequence[Any], scores: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Return the perplexity per token, as "perplexity".

    Args:
        targets: one per example; only counted.
        scores: sum of log-probabilities of each one's tokens in nats, and the number of tokens.

    Returns:
        exp of minus the mean log-probability; infinite where a token had probability 0.

    Raises:
        DataError: there is nothing to compare, no token, or not one score per target.
    """
    pairs = _pairs(targets, scores)
    tokens = sum(count for _, (_, count) in pairs)
    if tokens < 1:
        raise DataError("perplexity of 0 tokens", hint="score targets that have tokens")
    mean = -sum(total for _, (total, _) in pairs) / tokens
    # exp overflows above 709.
    return {"perplexity": math.exp(mean) if mean < 709 else math.inf}


def _pairs(targets: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pair targets with what is compared with them."""
    if not targets or len(targets) != len(others):
        raise DataError(
            f"{len(targets)} targets with {len(others)} predictions or scores",
            hint="give at least one target, and one prediction or score for each",
        )
    return list(zip(targets, others, strict=True))


def _mean(score: Callable[[Any, Any], float], pairs: list[tuple[Any, Any]]) -> float:
    """Return the mean of a score of pairs."""
    return sum(score(one, other) for one, other in pairs) / len(pairs)


def _normal(text: str) -> list[str]:
    """Return the words that are compared."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _f1(target: list[Any], found: list[Any]) -> float:
    """Return F1 of two bags of words."""
    if not target or not found:
        return float(target == found)
    return _harmonic(sum((Counter(target) & Counter(found)).values()), len(target), len(found))


def _sequence_f1(target: list[str], found: list[str]) -> float:
    """Return F1 of the longest common subsequence."""
    if not target or not found:
        return float(target == found)
    row = [0] * (len(found) + 1)
    for word in target:
        before = row
        row = [0]
        for place, other in enumerate(found):
            longest = before[place] + 1 if word == other else max(before[place + 1], row[place])
            row.append(longest)
    return _harmonic(row[-1], len(target), len(found))


def _harmonic(shared: int, target: int, found: int) -> float:
    """Return the harmonic mean of precision and recall."""
    return 2 * shared / (target + found)
