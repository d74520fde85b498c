import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.convert import LanguageModel
from steelyard.data.difficulty import (
    el2n,
    entropy,
    forgetting,
    margin,
    prototype_distance,
    stability,
)
from steelyard.data.kmeans import kmeans, nearest
from steelyard.data.loader import Loader
from steelyard.data.pruning import KeptExamples, prune
from steelyard.data.tasks import ByteVocabulary, CachedTask, Feature, Records, Task, write_cache
from steelyard.errors import ConfigError, DataError


def blobs(count, spread, seed=0, classes=4):
    rng = np.random.default_rng(seed)
    centers = 3 * rng.standard_normal((classes, 8))
    labels = rng.integers(0, classes, count)
    return centers[labels] + spread * rng.standard_normal((count, 8)), labels


def trained(points, labels, seed, passes=8):
    """A linear softmax classifier trained with small batches: its EL2N half-way, and forgetting."""
    rng = np.random.default_rng(seed)
    weights = 0.01 * rng.standard_normal((points.shape[1], labels.max() + 1))
    was_right, learned = np.zeros((2, len(points)), dtype=bool)
    forgotten = np.zeros(len(points), dtype=int)
    scores = None
    for number in range(passes):
        for part in np.array_split(rng.permutation(len(points)), len(points) // 16):
            logits = points[part] @ weights
            right = logits.argmax(axis=1) == labels[part]
            forgotten[part] += was_right[part] & ~right
            was_right[part] = right
            learned[part] |= right
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            shares[np.arange(len(part)), labels[part]] -= 1
            weights -= 0.1 * points[part].T @ shares / len(part)
        if number == passes // 2:
            scores = el2n(points @ weights, labels)
    return scores, forgetting(forgotten, learned)


def test_metrics_of_one_training_agree_and_find_wrong_labels():
    points, labels = blobs(800, 2.5)
    wrong = np.random.default_rng(1).choice(800, 40, replace=False)
    given_labels = labels.copy()
    given_labels[wrong] = (labels[wrong] + 1) % 4
    runs = [trained(points, given_labels, seed) for seed in range(4)]
    scores, forgot = (np.stack(column) for column in zip(*runs, strict=True))
    mean = scores.mean(axis=0)
    ranks = [np.argsort(np.argsort(values)) for values in (mean, forgot.mean(axis=0))]
    assert np.corrcoef(*ranks)[0, 1] > 0.5
    assert stability(scores) > 0.8
    # Wrong labels are the hardest: what the hard side keeps first.
    assert np.isin(wrong, prune(mean, keep=0.1)).mean() > 0.8
    distance = prototype_distance(points, labels=given_labels)
    assert np.isin(wrong, prune(distance, keep=0.2)).mean() > 0.7


def test_scores_of_known_logits():
    logits = np.log([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    labels = np.array([0, 2])
    assert el2n(logits, labels) == pytest.approx([np.sqrt(0.14), np.sqrt(1.46)])
    assert margin(logits, labels) == pytest.approx([-0.5, 0.7])
    assert entropy(logits)[0] == pytest.approx(-sum(p * np.log(p) for p in (0.7, 0.2, 0.1)))
    both = entropy(np.stack([logits, logits[:, ::-1]]))
    assert both[0] == pytest.approx(-2 * 0.4 * np.log(0.4) - 0.2 * np.log(0.2))
    assert el2n(1e5 * logits, labels) == pytest.approx([0, np.sqrt(2)])


def test_what_was_never_learned_is_harder_than_what_was_forgotten():
    scores = forgetting(np.array([2, 0, 0]), np.array([True, False, True]))
    assert scores.tolist() == [2, 3, 0]
    for forgotten, learned in (([1, 2], [True]), ([-1], [True])):
        with pytest.raises(DataError, match="are not counts"):
            forgetting(np.array(forgotten), np.array(learned))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(-5, 5), min_size=2, max_size=60, unique=True),
    st.floats(0.05, 1),
    st.sampled_from(["hard", "easy"]),
    st.integers(1, 4),
    st.floats(0, 1),
)
def test_what_is_kept(values, keep, side, classes, balance):
    scores = np.array(values)
    labels = np.arange(len(scores)) * classes // len(scores)
    kept = prune(scores, keep=keep, side=side, labels=labels, balance=balance)
    count = max(1, round(keep * len(scores)))
    assert len(kept) == count and (np.diff(kept) > 0).all()
    plain = prune(scores, keep=keep, side=side)
    ends = np.sort(scores)[-count:] if side == "hard" else np.sort(scores)[:count]
    assert sorted(scores[plain]) == ends.tolist()
    for number in np.unique(labels):
        least = min(int(balance * count / len(np.unique(labels))), (labels == number).sum())
        own = np.flatnonzero(labels == number)
        held = np.intersect1d(kept, own)
        assert len(held) >= least
        # Inside a class the same end is kept.
        ranked = own[np.argsort(-scores[own] if side == "hard" else scores[own])]
        assert sorted(ranked[: len(held)]) == held.tolist()


def test_the_hard_side_without_balance_may_drop_a_class():
    labels = np.arange(100) % 2
    scores = np.where(labels == 0, 0.1, 0.9) + np.arange(100) * 1e-4
    assert set(labels[prune(scores, keep=0.3)]) == {1}
    kept = prune(scores, keep=0.3, labels=labels)
    assert np.bincount(labels[kept]).tolist() == [7, 23]


def test_choices_that_cannot_be_made_are_refused():
    good = np.arange(5.0)
    for options in ({"keep": 0}, {"keep": 1.1}, {"keep": 0.5, "side": "both"}):
        with pytest.raises(ConfigError):
            prune(good, **options)
    with pytest.raises(ConfigError, match="balance = 2"):
        prune(good, keep=0.5, balance=2)
    for scores, message in (
        ([1, np.nan], "not finite"),
        ([2, 2, 2], "all 3 scores are 2"),
        ([], "not finite numbers"),
    ):
        with pytest.raises(DataError, match=message):
            prune(np.array(scores), keep=0.5)
    with pytest.raises(DataError, match="3 labels for 5"):
        prune(good, keep=0.5, labels=np.zeros(3, int))
    with pytest.raises(ConfigError, match="either labels or their count"):
        prototype_distance(np.ones((3, 2)))
    with pytest.raises(DataError, match="no direction"):
        prototype_distance(np.zeros((3, 2)), count=1)
    with pytest.raises(DataError, match="not finite"):
        el2n(np.full((2, 3), np.nan), np.zeros(2, int))
    with pytest.raises(DataError, match="label 3 of 3 classes"):
        margin(np.zeros((1, 3)), np.array([3]))
    with pytest.raises(DataError, match="2 or more nets"):
        stability(np.ones((1, 5)))


@pytest.mark.parametrize("options", [{}, {"batch_size": 64}, {"metric": "cosine"}])
def test_kmeans_finds_separate_clusters(options):
    points, labels = blobs(600, 0.1)
    found = kmeans(points, 4, seed=1, **options)
    pairs = {(int(one), int(other)) for one, other in zip(found.labels, labels, strict=True)}
    assert len(pairs) == 4
    assert np.array_equal(found.centers, kmeans(points, 4, seed=1, **options).centers)


def test_kmeans_ends_where_centers_are_means_and_no_cluster_is_empty():
    points, _ = blobs(500, 3.0)
    found = kmeans(points, 20, tolerance=0.0, iterations=300)
    means = np.stack([points[found.labels == number].mean(axis=0) for number in range(20)])
    assert found.centers == pytest.approx(means)
    distances = ((points[:, None] - found.centers[None]) ** 2).sum(axis=2)
    assert np.array_equal(nearest(points, found.centers)[0], distances.argmin(axis=1))
    assert found.inertia == pytest.approx(distances.min(axis=1).sum())
    same = kmeans(np.repeat([[0.0], [1.0]], 5, axis=0), 2)
    assert same.inertia == 0 and sorted(np.bincount(same.labels)) == [5, 5]
    for points, count in ((np.ones((3, 2)), 4), (np.ones((3, 2)), 0)):
        with pytest.raises(ConfigError):
            kmeans(points, count)
    with pytest.raises(DataError):
        kmeans(np.array([[np.inf]]), 1)


def test_kept_examples_load_like_their_task(tmp_path):
    records = [{"targets": f"example {number}"} for number in range(50)]
    features = {"targets": Feature(vocabulary=ByteVocabulary())}
    task = Task(name="t", source=Records(records), features=features)
    write_cache(task, tmp_path, shards=2)
    kept = KeptExamples(CachedTask(task, tmp_path), prune(np.arange(50.0), keep=0.2))
    loader = Loader(kept, LanguageModel(length=64), 2, pack=True)
    rows = [row for step in range(9) for row in loader.rows(step) if row.epoch == 0]
    assert sorted(i for row in rows for i in row.examples) == list(range(10))
    assert np.array_equal(kept.read(0)["targets"], task.read(40)["targets"])
    with pytest.raises(ConfigError, match="not cached"):
        Loader(KeptExamples(task, np.arange(3)), LanguageModel(length=64), 2, pack=True)
    for wrong in ([], [1, 1], [50], [-1]):
        with pytest.raises(DataError, match="kept examples of 50"):
            KeptExamples(task, np.array(wrong))
