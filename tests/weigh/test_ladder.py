import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.weigh.ladder import (
    BATCH_SIZE,
    SEQUENCE_LENGTH,
    design,
    parameters,
    probe_shapes,
    rung_architecture,
)
from steelyard.weigh.settings import QuickstartConfig

TOKENS = 4_000_000


def probed(rate: float) -> dict[tuple[int, int], float]:
    return {
        shape: 6 * parameters(shape) * BATCH_SIZE * SEQUENCE_LENGTH / rate
        for shape in probe_shapes(5)
    }


def test_a_faster_machine_gets_a_larger_target():
    slow, fast = (design(probed(rate), budget_s=300, max_tokens=TOKENS) for rate in (1e10, 1e13))
    assert parameters(fast.target) > parameters(slow.target)


@given(rate=st.floats(3e9, 3e12), budget_s=st.floats(60, 3600))
def test_a_ladder_keeps_its_share_of_the_time_and_its_order(rate, budget_s):
    ladder = design(probed(rate), budget_s=budget_s, max_tokens=TOKENS)
    sizes = [parameters(shape) for shape in (*ladder.rungs, ladder.target)]
    assert sizes == sorted(set(sizes))
    assert list(ladder.branch_steps) == sorted(set(ladder.branch_steps))
    assert ladder.branch_steps[-1] == ladder.target_steps
    assert ladder.target_steps * BATCH_SIZE * SEQUENCE_LENGTH <= TOKENS
    assert ladder.expected_s <= 0.55 * budget_s or ladder.rungs[0] == probe_shapes(5)[0]


def test_a_crawling_machine_gets_the_smallest_ladder():
    ladder = design(probed(1e7), budget_s=60, max_tokens=TOKENS)
    assert ladder.rungs == probe_shapes(5)[:3]
    assert ladder.target_steps == 120


def test_too_little_text_is_refused_with_both_numbers():
    with pytest.raises(InfeasibleError, match=r"1000 training tokens are too few .* see 122880"):
        design(probed(1e10), budget_s=300, max_tokens=1000)


def test_rungs_are_whole_models():
    arch = rung_architecture(96, 3)
    assert arch.num_heads * arch.head_dim == 96
    assert arch.intermediate_size == 256


@pytest.mark.parametrize(
    "change", [{"minutes": 0.5}, {"minutes": float("nan")}, {"budget_flops": -1.0}, {"seed": -1}]
)
def test_settings_refuse_what_cannot_work(change):
    with pytest.raises(ConfigError):
        QuickstartConfig(**change)


def test_a_missing_text_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no such file or folder: .*nowhere"):
        QuickstartConfig(text=(tmp_path / "nowhere",))
