import numpy as np
import pytest

from steelyard import catalog
from steelyard.cost.efficiency import Efficiencies
from steelyard.cost.roofline import Machine
from steelyard.cost.step_time import FEATURES, ServeStepTime
from steelyard.errors import ConfigError
from steelyard.plan.concurrency import ServingLayout, concurrency_map, tensor_parallel_step_time


def step_time(**coefficients):
    return ServeStepTime(
        coefficients=tuple(coefficients.get(name, 0.0) for name in FEATURES),
        relative_spread=0.0,
        count=7,
    )


def layouts():
    """One wide replica with a cheap step; two narrow ones of twice the fixed time but more rate."""
    wide = step_time(steps=0.010, decode_tokens=0.002)
    narrow = step_time(steps=0.020, decode_tokens=0.003)
    return [
        ServingLayout(name="wide", replicas=1, step_time=wide),
        ServingLayout(name="narrow", replicas=2, step_time=narrow),
    ]


def test_rates_are_those_worked_out_by_hand():
    found = concurrency_map(layouts(), [1, 4, 5], prompt_tokens=1, output_tokens=100)
    assert found.tokens_per_s[0] == pytest.approx([1 / 0.012, 4 / 0.018, 5 / 0.020])
    assert found.tokens_per_s[1] == pytest.approx([1 / 0.023, 2 * 2 / 0.026, 3 / 0.029 + 2 / 0.026])


def test_break_point_lies_where_the_curves_cross():
    counts = np.arange(1, 129)
    found = concurrency_map(layouts(), counts, prompt_tokens=1, output_tokens=100)
    # wide: c / (10 + 2c) ms; narrow with even c: c / (20 + 1.5c) ms; equal at c = 20
    assert found.break_points[0] == (1, "wide")
    assert found.break_points[-1][1] == "narrow"
    assert 19 <= found.break_points[-1][0] <= 22
    np.testing.assert_allclose(
        found.latency_s * found.tokens_per_s, np.broadcast_to(counts * 100.0, (2, 128))
    )


def test_sequences_beyond_the_limit_wait():
    one = ServingLayout(name="small", replicas=1, step_time=step_time(steps=0.01), max_sequences=4)
    found = concurrency_map([one], [4, 8], prompt_tokens=1, output_tokens=10)
    assert found.tokens_per_s[0, 0] == found.tokens_per_s[0, 1]
    assert found.latency_s[0, 1] == pytest.approx(2 * found.latency_s[0, 0])


def test_tensor_parallel_wins_at_low_and_replicas_at_high_concurrency():
    arch = catalog.architecture_by_name("llama-3-8b")
    machine = Machine.from_accelerator(
        catalog.accelerator("A100-SXM4-80GB"), dtype="bf16", efficiencies=Efficiencies.peak()
    )
    single = ServeStepTime.from_roofline(arch, machine)
    choices = [
        ServingLayout(
            name=f"TP{degree}",
            replicas=8 // degree,
            step_time=tensor_parallel_step_time(single, arch, machine, degree),
            max_sequences=4096,
        )
        for degree in (1, 2, 4, 8)
    ]
    found = concurrency_map(choices, 2 ** np.arange(15), prompt_tokens=512, output_tokens=128)
    assert found.best[0] == "TP8"
    assert found.best[-1] == "TP1"
    assert tensor_parallel_step_time(single, arch, machine, 1) is single


@pytest.mark.parametrize(
    ("given", "counts", "prompt"),
    [([], [1], 10), (layouts(), [], 10), (layouts(), [0], 10), (layouts(), [1], 0)],
)
def test_nonsense_is_refused(given, counts, prompt):
    with pytest.raises(ConfigError, match="layouts at concurrency"):
        concurrency_map(given, counts, prompt_tokens=prompt, output_tokens=10)


def test_a_layout_without_replicas_is_refused():
    with pytest.raises(ConfigError, match="none"):
        concurrency_map(
            [ServingLayout(name="none", replicas=0, step_time=step_time(steps=1.0))],
            [1],
            prompt_tokens=1,
            output_tokens=1,
        )
