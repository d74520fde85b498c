import numpy as np
import pytest

from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.powers import power_law
from steelyard.laws.forms.schedules.curves import Curve, cooldown_gain, fit_curves, predict_curve
from steelyard.laws.forms.schedules.drift import Known, pooled_drift
from steelyard.laws.forms.schedules.schedule import multi_power
from steelyard.laws.forms.schedules.schedule_rates import LearningRates

PEAK, WARMUP, STEPS = 1e-3, 60, 1200
TRUTH = {"L0": 2.5, "A": 0.4, "alpha": 0.5, "B": 100.0, "C": 0.6, "beta": 0.6, "gamma": 0.65}
KNOWN = {
    "constant": LearningRates.constant(STEPS, PEAK, WARMUP),
    "cosine": LearningRates.cosine(STEPS, PEAK, WARMUP),
    "two stages": LearningRates.two_stage(STEPS, PEAK, 3e-4, 600, WARMUP),
}
COOLED = LearningRates.trapezoid(STEPS, PEAK, WARMUP, 0.25, "linear")


def losses(rates, steps, truth=TRUTH):
    law = multi_power([rates])
    inputs = {"schedule": np.ones(len(steps)), "step": np.asarray(steps, dtype=float)}
    return np.exp(law.predict(law.coordinates(truth)[None], inputs))[0]


def curve(rates, *, tilt=0.0, truth=TRUTH, seed=0):
    """A curve of the law, its annealed half off by up to `tilt` in log loss."""
    steps = np.arange(100.0, rates.steps, 25)
    noise = 2e-4 * np.random.default_rng(seed).standard_normal(len(steps))
    off = tilt * np.clip(steps / 600 - 1, 0, 1)
    return Curve(rates=rates, step=steps, loss=losses(rates, steps, truth) * np.exp(noise + off))


@pytest.fixture(scope="module")
def fitted():
    return fit_curves([curve(rates) for rates in KNOWN.values()], bootstrap=Bootstrap(count=4))


def test_nothing_is_new_while_a_fitted_curve_had_the_same_rates():
    known = Known(
        predict=lambda rates, steps: np.log(losses(rates, steps)),
        rates=[KNOWN["constant"]],
        last=[STEPS - 1.0],
        first=100.0,
    )
    steps = np.array([200.0, 890, 1000, 1199])
    new = known.novelty(COOLED, steps)
    assert new[0] == new[1] == 0 < new[2] < new[3]
    assert new[2] == pytest.approx(
        np.log(losses(KNOWN["constant"], [1000]) / losses(COOLED, [1000]))[0]
    )
    # What is new at a step does not depend on the steps asked beside it.
    assert known.novelty(COOLED, steps[2:3])[0] == pytest.approx(new[2], rel=0.05)


def test_novelty_does_not_shrink_where_two_curves_cross_nor_beyond_the_end():
    known = Known(
        predict=lambda rates, steps: np.log(losses(rates, steps)),
        rates=[KNOWN["cosine"]],
        last=[600.0],
        first=100.0,
    )
    new = known.novelty(KNOWN["cosine"], np.arange(500.0, STEPS, 100))
    assert new[0] == 0 < new[2] and (np.diff(new) >= 0).all()


def test_pooled_drift_is_the_geometric_mean_with_the_assumed_one():
    change = np.full(50, 0.02)
    assert pooled_drift([], [], 0.0, 0.15) == pytest.approx(0.15)
    errors = [0.1 * change, 0.4 * change]
    assert pooled_drift(errors, [change, change], 0.0, 0.15) == pytest.approx(
        (0.1 * 0.4 * 0.15) ** (1 / 3)
    )
    # A lucky curve promises a third of the assumed drift at best; a repeat tells nothing.
    lucky = pooled_drift([0 * change, 0.4 * change], [change, 0 * change], 0.0, 0.15)
    assert lucky == pytest.approx(0.15 * 0.3**0.5)


def test_left_out_curves_measure_the_drift_and_it_widens_what_is_new(fitted):
    assert fitted.drift_source == "holdout"
    off = fit_curves(
        [
            curve(rates, tilt=tilt, seed=index)
            for index, (rates, tilt) in enumerate(
                zip(KNOWN.values(), (0.0, 0.004, -0.008), strict=True)
            )
        ],
        bootstrap=Bootstrap(count=4),
    )
    assert off.drift > 1.5 * fitted.drift
    said = predict_curve(fitted, COOLED, [500, 880, 1199])
    width = np.log(said.high / said.low)
    assert width[1] < 1.3 * width[0] and width[2] > 2 * width[0]
    gain = cooldown_gain(off, KNOWN["constant"], COOLED).gain
    assert gain.high - gain.low > 2 * 1.28 * off.drift * gain.value


def test_few_curves_take_an_assumed_drift_or_that_of_the_other_size(fitted):
    larger = {**TRUTH, "L0": 2.2, "A": 0.45}
    one = [curve(KNOWN["cosine"], truth=larger)]
    assert fit_curves(one, bootstrap=Bootstrap(count=2)).drift_source == "assumed"
    lent = fit_curves(one, prior=fitted, bootstrap=Bootstrap(count=4))
    assert (lent.drift, lent.drift_source) == (fitted.drift, "holdout")
    assert set(lent.prior) == {"A", "alpha", "B", "C", "beta", "gamma"}
    said = predict_curve(lent, COOLED, [1199]).first
    assert said.low < losses(COOLED, [1199], larger)[0] < said.high
    assert said.value == pytest.approx(losses(COOLED, [1199], larger)[0], rel=3e-3)


def test_a_law_of_steps_alone_drifts_by_its_error():
    flat = fit_curves(
        [curve(rates) for rates in KNOWN.values()],
        law=power_law("step"),
        bootstrap=Bootstrap(count=2),
    )
    said = predict_curve(flat, COOLED, [300, 1199])
    assert flat.drift_source == "holdout"
    assert (np.log(said.high / said.low) / 2 > 1.28 * flat.drift * 0.99).all()
