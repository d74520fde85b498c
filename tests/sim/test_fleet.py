"""Bad fleets and traces are refused; step times by phase."""

from dataclasses import replace

import numpy as np
import pytest

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import FEATURES, ServeStepTime, step_features
from steelyard.errors import CapacityError, ConfigError, FitError, TraceError
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet

STEP_TIME = PhaseStepTime.from_fits(
    prefill=(0.02, 1e-4, 1e-8),
    decode=(0.01, 1e-6, 1e-4),
    large_decode=(0.005, 1e-6, 2e-4),
    large_batch=8,
    source="made up",
)
GROUP = ReplicaGroup(step_time=STEP_TIME, blocks=100)


@pytest.mark.parametrize(
    ("arrivals", "inputs", "outputs", "named"),
    [
        ([0.0, -1.0], [5, 5], [5, 5], "row 1.*arrival_s"),
        ([0.0, 2.0, 1.0], [5, 5, 5], [5, 5, 5], "row 2.*arrival_s"),
        ([0.0], [0], [5], "row 0.*input"),
        ([0.0], [5], [0], "row 0.*output"),
        ([0.0], [5, 6], [5], "one length"),
        ([], [], [], "not empty"),
    ],
)
def test_bad_traces_are_refused_by_row(arrivals, inputs, outputs, named):
    with pytest.raises(TraceError, match=named):
        simulate_fleet([GROUP], arrivals, inputs, outputs)


def test_requests_that_fit_nowhere_are_refused():
    with pytest.raises(CapacityError, match=r"row 1 .* 1610 tokens"):
        simulate_fleet([GROUP], [0.0, 1.0], [10, 1600], [10, 10])


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"priority": [1]}, TraceError, "1 priorities for 2"),
        ({"block_ids": [[1]]}, TraceError, "1 requests for a trace of 2"),
        ({"windows": [[[0.0, 1.0]] * 2]}, ConfigError, "windows of the shapes"),
        ({"windows": [[[2.0, 1.0]]]}, ConfigError, "end before they begin"),
    ],
)
def test_bad_columns_are_refused(given, error, named):
    with pytest.raises(error, match=named):
        simulate_fleet([GROUP], [0.0, 1.0], [5, 5], [5, 5], **given)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"policy": "vtc"}, "SchedulerReplica"),
        ({"route": "shortest"}, "fewest, rotation, prefix"),
        ({"route_slack": -1}, "route_slack"),
    ],
)
def test_what_only_schedulers_do_is_refused_by_name(given, named):
    with pytest.raises(ConfigError, match=named):
        replace(GROUP, **given)


def test_groups_share_one_block_size():
    kinds = {"step_time": STEP_TIME, "blocks": 100, "prefix_caching": True}
    groups = [
        ReplicaGroup(role="prefill", whole_prompts=True, block_size=8, **kinds),
        ReplicaGroup(role="decode", **kinds),
    ]
    with pytest.raises(ConfigError, match=r"\[8, 16\]"):
        simulate_fleet(groups, [0.0], [10], [10])


def test_roles_have_to_go_together():
    decode = ReplicaGroup(step_time=STEP_TIME, blocks=100, role="decode")
    with pytest.raises(ConfigError, match="both, decode"):
        simulate_fleet([GROUP, decode], [0.0], [10], [10])


def test_step_times_have_constants_and_terms_of_their_phase():
    def seconds(prompt, decodes):
        row = step_features(
            sequences=decodes + 1,
            prefill_tokens=prompt,
            prefill_kv=prompt * (prompt + 1) / 2,
            decode_tokens=decodes,
            decode_kv=100 * decodes,
        )
        return float(STEP_TIME.predict(row[None])[0])

    prompt_s = 0.02 + 50 * 1e-4 + 2500 * 1e-8
    assert seconds(50, 0) == pytest.approx(prompt_s)
    assert seconds(0, 4) == pytest.approx(0.01 + 400e-6 + 4e-4)
    assert seconds(0, 8) == pytest.approx(0.005 + 800e-6 + 16e-4)
    assert seconds(50, 4) == pytest.approx(prompt_s + 400e-6 + 4e-4)
    assert STEP_TIME.scaled(2).predict(np.ones((3, 7))) == pytest.approx(
        2 * STEP_TIME.predict(np.ones((3, 7)))
    )


def test_a_linear_model_is_the_same_in_every_phase():
    model = ServeStepTime(
        coefficients=tuple(np.arange(1.0, 8.0)), relative_spread=0.1, count=1, source="made up"
    )
    rows = np.random.default_rng(0).uniform(0, 9, (20, len(FEATURES)))
    assert PhaseStepTime.of(model).predict(rows) == pytest.approx(model.predict(rows))


def test_tables_of_another_shape_are_refused():
    with pytest.raises(FitError, match="5 x 7"):
        PhaseStepTime(coefficients=((1.0,),), large_batch=1, relative_spread=0, source="")
