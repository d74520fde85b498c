"""Widths of forecasts: parts of a served token, queues, and what no run was fitted on."""

from dataclasses import replace

import numpy as np
import pytest

from steelyard import catalog
from steelyard.cost.operators import operators
from steelyard.cost.roofline import Machine, roofline_time_s
from steelyard.errors import ConfigError
from steelyard.plan.beliefs import PARTS, Beliefs, fit_beliefs
from steelyard.plan.intervals import (
    SERVED_BELIEFS,
    adapter_relative,
    beyond_spread,
    first_token,
    served_relative,
)
from steelyard.plan.serving_parts import SERVED_PARTS, decode_parts
from steelyard.quantity import Z80

H100 = Machine.from_accelerator(catalog.accelerator("H100-SXM5-80GB"))
LLAMA = catalog.architecture_by_name("llama-3.1-8b")
MIXTRAL = catalog.architecture_by_name("mixtral-8x7b")


@pytest.mark.parametrize("arch", [LLAMA, MIXTRAL], ids=lambda item: item.name)
def test_parts_of_a_step_add_up_to_its_time(arch):
    batches = np.array([1.0, 8.0, 64.0])
    table = operators(arch, phase="decode", tokens=1, context=1024, batch=batches)
    parts = decode_parts(table, H100, links_s=1e-4, prompt_s=batches * 1e-5)
    whole = roofline_time_s(table, H100) + 1e-4 + batches * 1e-5
    assert parts.time_s == pytest.approx(whole)
    assert parts.shares.sum(axis=1) == pytest.approx(1.0)
    assert (parts.expert_s > 0).all() == bool(arch.num_experts)
    one = parts.at(1)
    assert one.shares[0] == pytest.approx(parts.shares[1])


def test_a_token_that_waits_for_launches_is_less_sure_than_one_that_reads_weights():
    def width(model, batch, machine=H100):
        table = operators(
            catalog.architecture_by_name(model), phase="decode", tokens=1, context=512, batch=batch
        )
        return served_relative(machine, decode_parts(table, machine))

    assert width("smollm-135m", 1) > 1.2 * width("llama-3.1-8b", 1)
    other = replace(H100, name="L40S")
    assert width("llama-3.1-8b", 1, other) > width("llama-3.1-8b", 1)
    own = replace(H100, provenance="measured", disturbance=0.15)
    assert width("llama-3.1-8b", 1, own) == own.calibrated_relative == pytest.approx(0.25)


def test_the_first_token_may_wait_for_as_many_as_are_served_together():
    few, many = (first_token(H100, 0.1, batch, relative=0.3) for batch in (1, 64))
    assert few.low == many.low == pytest.approx(0.1 / 1.3)
    assert few.high == pytest.approx(0.13) and many.high > 10 * few.high
    own = first_token(replace(H100, provenance="measured"), 0.1, 64, relative=0.3)
    assert own.high == pytest.approx(0.13) and own.provenance == "derived"


def test_doubt_beyond_the_fitted_runs_adds_up_and_is_shared():
    assert beyond_spread(H100, LLAMA) == 0
    narrow, routed = beyond_spread(replace(H100, dtype="fp8"), LLAMA), beyond_spread(H100, MIXTRAL)
    both = beyond_spread(replace(H100, dtype="fp8"), MIXTRAL)
    assert both == pytest.approx(np.hypot(narrow, routed)) and min(narrow, routed) > 0.1
    rng = np.random.default_rng(0)
    doubt = Beliefs(parts=(0.1,) * len(PARTS), own=0.05).doubt(rng.dirichlet(np.ones(8), 3))
    wider = doubt.shared(0.4)
    assert wider.spread == pytest.approx(np.hypot(doubt.spread, 0.4))
    # The difference of two layouts' errors is as sure as before.
    apart = np.array([1.0, -1.0, 0.0])
    before, after = (apart @ item.times_covariance @ apart for item in (doubt, wider))
    assert after == pytest.approx(before)


def test_adapters_are_as_unsure_as_another_accelerator():
    found = [adapter_relative(H100, 1.0, links_s) for links_s in (0.0, 3.0)]
    assert min(found) > np.expm1(Z80 * 0.15) and max(found) < 0.3


def test_fitted_spreads_are_the_likeliest_of_their_neighbors():
    """The sums over a group say as much as its whole covariance."""
    rng = np.random.default_rng(1)
    names = ("a", "b", "c")
    groups = []
    for _ in range(12):
        shares = rng.dirichlet(np.ones(3), 30)
        factors = rng.normal(size=3) * (0.05, 0.6, 0.2)
        groups.append((shares, shares @ factors + 0.04 * rng.normal(size=30)))
    found = fit_beliefs(groups, names)

    def likelihood(parts, own):
        total = 0.0
        for shares, errors in groups:
            covariance = (shares * np.square(parts)) @ shares.T + own**2 * np.eye(30)
            total -= 0.5 * errors @ np.linalg.solve(covariance, errors)
            total -= 0.5 * np.linalg.slogdet(covariance)[1]
        return total

    best = likelihood(found.parts, found.own)
    for place in range(3):
        for factor in (0.7, 1.4):
            moved = np.array(found.parts)
            moved[place] *= factor
            assert likelihood(moved, found.own) < best + 0.5
    assert likelihood(found.parts, 2 * found.own) < best - 10
    with pytest.raises(ConfigError, match="parts"):
        Beliefs(parts=(0.1, 0.2), own=0.1, names=names)


def test_spreads_of_serving_name_each_part():
    assert SERVED_BELIEFS.names == SERVED_PARTS and len(SERVED_BELIEFS.parts) == len(SERVED_PARTS)
