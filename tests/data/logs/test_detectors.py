"""Detectors against slow versions and known faults; reasons that name the culprit."""

import numpy as np
import pytest
from scipy import optimize

from steelyard.data.anomalies.isolation import _mean_length
from steelyard.data.logs import (
    ClusterDetector,
    InvariantDetector,
    IsolationForest,
    LogisticDetector,
    NgramModel,
    PcaDetector,
    SequenceDetector,
    count_events,
    sessions_of,
    synthesize_sessions,
    windows_of,
)
from steelyard.data.logs.reasons import SessionRules
from steelyard.data.logs.sessions import CountWeights
from steelyard.errors import ConfigError, DataError

TEMPLATES = 40


@pytest.fixture(scope="module")
def made():
    return synthesize_sessions(TEMPLATES, 2000, 7)


@pytest.fixture(scope="module")
def counts(made):
    return count_events([session.events for session in made], TEMPLATES)


def kinds_of(made, flagged, kind):
    return np.mean(
        [flag for session, flag in zip(made, flagged, strict=True) if session.fault == kind]
    )


def test_faults_are_what_they_are_called(made):
    kinds = {session.fault for session in made}
    assert kinds == {"", "missing", "extra", "reordered", "late"}
    share = np.mean([bool(session.fault) for session in made])
    assert 0.03 < share < 0.07
    for session in made:
        assert len(session.events) == len(session.times_s)
        assert (np.diff(session.times_s) >= 0).all()
    with pytest.raises(ConfigError, match="20 templates"):
        synthesize_sessions(20, 10, 0)


def test_pca_residuals_are_those_of_a_projection(counts):
    detector = PcaDetector.fit(counts)
    centred = CountWeights.of(counts).apply(counts)
    variances, directions = np.linalg.eigh(np.cov(centred.T))
    order = np.argsort(-variances)
    kept = len(detector.components)
    assert variances[order[:kept]].sum() >= 0.95 * variances.sum()
    assert variances[order[: kept - 1]].sum() < 0.95 * variances.sum()
    basis = directions[:, order[:kept]]
    slow = ((centred - centred @ basis @ basis.T) ** 2).sum(axis=1)
    np.testing.assert_allclose(detector.score(counts), slow, atol=1e-6)


def test_the_threshold_of_pca_flags_alpha_of_normal_rows():
    rng = np.random.default_rng(0)
    spread = np.array([30.0, 20, 1, 1, 1, 1, 1, 1])
    rows = 100 + rng.standard_normal((40_000, 8)) * spread
    detector = PcaDetector.fit(rows, explained=0.99, alpha=0.01)
    assert np.mean(detector.score(rows) > detector.threshold) == pytest.approx(0.01, abs=0.003)


def test_pca_and_invariants_find_what_counts_show(made, counts):
    pca = PcaDetector.fit(counts)
    assert kinds_of(made, pca.score(counts) > pca.threshold, "extra") > 0.9
    invariants = InvariantDetector.fit(counts)
    flagged = invariants.score(counts) > invariants.threshold
    assert kinds_of(made, flagged, "missing") > 0.9
    assert kinds_of(made, flagged, "extra") > 0.9
    assert kinds_of(made, flagged, "") < 0.02
    assert kinds_of(made, flagged, "reordered") == 0


def test_invariants_hold_what_was_planted():
    rng = np.random.default_rng(0)
    base = rng.integers(1, 9, 500)
    rows = np.column_stack([base * 2, base * 3, rng.integers(1, 9, 500)]).astype(float)
    assert InvariantDetector.fit(rows).relations == ((0, 1, 3, 2),)
    empty = InvariantDetector(relations=())
    assert empty.score(rows).tolist() == [0] * 500


def test_forest_depths_follow_the_published_correction():
    assert _mean_length(1) == 0
    assert _mean_length(2) == 1
    assert _mean_length(256) == pytest.approx(10.244, abs=0.01)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2000, 4))
    rows[:10] += 8
    forest = IsolationForest.fit(rows, seed=1, flagged=0.01)
    scores = forest.score(rows)
    assert set(np.argsort(-scores)[:10]) == set(range(10))
    assert 0.4 < np.median(scores) < 0.5 < scores[0]
    assert np.mean(scores > forest.threshold) == pytest.approx(0.01, abs=0.003)


def test_logistic_coefficients_are_those_of_a_plain_minimum(counts, made):
    made, counts = made[:300], counts[:300]
    labels = np.array([session.fault in ("extra", "missing") for session in made])
    detector = LogisticDetector.fit(counts, labels, penalty=0.5)
    inputs = np.column_stack([detector.weights.apply(counts), np.ones(len(counts))])
    signs = np.where(labels, 1.0, -1.0)
    balance = np.where(labels, 0.5 / labels.mean(), 0.5 / (1 - labels.mean()))

    def loss(found):
        return (balance * np.logaddexp(0, -signs * (inputs @ found))).sum() + 0.5 * (
            found[:-1] ** 2
        ).sum()

    best = optimize.minimize(loss, np.zeros(inputs.shape[1]), method="L-BFGS-B", tol=1e-12)
    assert loss(detector.coefficients) <= best.fun * (1 + 1e-6)
    with pytest.raises(DataError, match="one kind"):
        LogisticDetector.fit(counts, np.zeros(len(counts), bool))


def test_clusters_are_near_what_they_were_made_of(counts):
    detector = ClusterDetector.fit(counts)
    assert np.mean(detector.score(counts) > detector.threshold) < 0.05
    strange = np.zeros((1, TEMPLATES))
    strange[0, TEMPLATES - 4 :] = 1
    assert detector.score(strange)[0] > detector.threshold


def test_ngrams_are_surprised_by_another_order(made):
    normal = [session.events for session in made if not session.fault]
    detector = SequenceDetector(model=NgramModel.fit(normal, 2))
    assert np.mean(detector.score(normal) > detector.threshold) < 0.01
    events = [event for event in normal[0] if event != 2]
    swapped = [*events[:1], events[2], events[1], *events[3:]]
    assert detector.score([swapped])[0] > 0
    with pytest.raises(ConfigError, match="look back"):
        NgramModel.fit(normal, 0)


class Echo:
    """A model from elsewhere: what came last comes again."""

    def expected(self, before, most):
        return [*before[-1:], -1][:most]


def test_a_model_from_elsewhere_is_handed_in():
    assert SequenceDetector(model=Echo()).surprises([3, 3, 4]) == [(0, 3), (2, 4)]


def test_reasons_name_the_culprit(made):
    half = len(made) // 2
    rules = SessionRules(
        [session.events for session in made[:half]],
        TEMPLATES,
        [session.times_s for session in made[:half]],
    )
    named = [
        session.culprit
        in [reason.event for reason in rules.explain(session.events, session.times_s)]
        for session in made[half:]
        if session.fault
    ]
    assert np.mean(named) >= 0.9
    quiet = [
        len(rules.explain(session.events, session.times_s)) == 0
        for session in made[half:]
        if not session.fault
    ]
    assert np.mean(quiet) > 0.7


def test_sessions_and_windows():
    templates = np.array([0, 1, -1, 2, 0])
    keys, events, lines = sessions_of(templates, ["a", "b", "a", None, "a"])
    assert (keys, events, lines) == (["a", "b"], [[0, 0], [1]], [[0, 4], [1]])
    assert windows_of(templates, 3) == [[0, 1], [2, 0]]
    with pytest.raises(DataError, match="session 0"):
        count_events([[5]], 5)
    with pytest.raises(DataError, match="cannot be trained"):
        PcaDetector.fit(np.zeros((1, 3)))
