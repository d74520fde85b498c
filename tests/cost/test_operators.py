import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cost import (
    Efficiencies,
    Layout,
    Machine,
    operators,
    roofline_time_s,
    training_memory,
    training_step,
)
from steelyard.cost.flops import forward_flops
from steelyard.errors import CatalogError, ConfigError


def test_forward_list_adds_up_to_the_formula(architectures):
    arch = architectures["gpt3"]
    table = operators(arch, phase="prefill", tokens=2048, causal=False)
    head_of_other_tokens = 2 * 2047 * arch.hidden_size * arch.vocab_size
    assert table.total("flops") == pytest.approx(forward_flops(arch, 2048) - head_of_other_tokens)


def test_encoder_decoder_list_adds_up_to_the_formula(architectures):
    arch = architectures["transformer-big"]
    table = operators(arch, phase="prefill", tokens=512, causal=False)
    head_of_other_tokens = 2 * 511 * arch.hidden_size * arch.vocab_size
    assert table.total("flops") == pytest.approx(forward_flops(arch, 512) - head_of_other_tokens)


def test_decode_reads_all_weights_and_the_cache(architectures):
    arch = architectures["yi-34b"]
    table = operators(arch, phase="decode", tokens=1, context=4096, batch=3)
    from steelyard.cost import kv_bytes_per_token
    from steelyard.cost.flops import active_matrix_parameters

    weights = 2 * active_matrix_parameters(arch)
    assert table.total("weight_bytes") == pytest.approx(weights)
    assert table.total("bytes_read") >= weights + 3 * 4096 * kv_bytes_per_token(arch)
    assert table.total("bytes_read") <= 1.02 * (weights + 3 * 4096 * kv_bytes_per_token(arch))


def test_columns_broadcast_over_layouts(architectures):
    options = {"phase": "train", "tokens": 2048, "batch": np.array([1, 2, 4])}
    table = operators(architectures["gpt3"], tensor_parallel=np.array([[1], [8]]), **options)
    assert table.flops.shape == (len(table.names), 2, 3)
    single = operators(
        architectures["gpt3"], phase="train", tokens=2048, batch=4, tensor_parallel=8
    )
    assert table.total("flops")[1, 2] == pytest.approx(single.total("flops"))
    assert not table.total("bytes_communicated")[0].any()
    assert table.total("flops")[1, 2] == pytest.approx(table.total("flops")[0, 2] / 8)


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 4096), batch=st.integers(1, 64), scale=st.integers(2, 4))
def test_more_work_never_takes_less_time(tokens, batch, scale, architectures, a100):
    machine, arch = Machine.from_accelerator(a100), architectures["tiny"]
    times = [
        roofline_time_s(operators(arch, phase="prefill", tokens=tokens, batch=size), machine)
        for size in (batch, batch * scale)
    ]
    assert times[1] >= times[0] > 0


def test_rates_equal_measured_points_and_stay_within_them(calibration):
    machine = Machine.from_calibration(calibration)
    assert machine.matmul_rate(256, 256, 256) == pytest.approx(60e9, rel=1e-6)
    assert 20e9 <= machine.matmul_rate(1, 8, 100000) <= 90e9
    assert machine.peak_flops_per_s == 90e9 and machine.provenance == "measured"
    assert machine.bandwidth(1e6) == 80e9 and machine.bandwidth(1e9) == 20e9
    with pytest.raises(CatalogError, match="bf16"):
        Machine.from_calibration(calibration, "bf16")


def test_published_machine_states_its_assumptions(a100):
    machine = Machine.from_accelerator(a100)
    assert machine.provenance == "assumed" and "0.62" in machine.source
    assert (
        Machine.from_accelerator(a100, efficiencies=Efficiencies.peak()).matmul_rate(64, 64, 64)
        == 312e12
    )
    with pytest.raises(CatalogError, match="fp8"):
        Machine.from_accelerator(a100, dtype="fp8")


def test_bad_sizes_are_refused(architectures, a100):
    with pytest.raises(ConfigError, match="phase"):
        operators(architectures["tiny"], phase="encode", tokens=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 1"):
        operators(architectures["tiny"], phase="train", tokens=0)
    with pytest.raises(ConfigError, match="micro_batch"):
        training_step(
            architectures["tiny"],
            machine=Machine.from_accelerator(a100),
            micro_batch=0,
            sequence_length=8,
        )


def test_step_parts_add_up_and_vectorize(architectures, a100):
    machine = Machine.from_accelerator(a100)
    layout = Layout(data=np.array([1, 2, 4]), zero_stage=np.array([0, 1, 3]))
    many = training_step(
        architectures["gpt2-xl"],
        machine=machine,
        micro_batch=2,
        sequence_length=1024,
        accumulation=4,
        layout=layout,
    )
    parts = many.compute_s + many.tensor_s + many.bubble_s + many.data_s + many.update_s
    assert np.allclose(parts, many.time_s)
    one = training_step(
        architectures["gpt2-xl"],
        machine=machine,
        micro_batch=2,
        sequence_length=1024,
        accumulation=4,
    )
    assert isinstance(one.time_s, float) and one.time_s == pytest.approx(many.time_s[0])
    assert 0.2 < one.mfu < 0.65 and many.tokens.tolist() == [8192.0, 16384.0, 32768.0]


def test_memory_falls_with_sharding_and_recomputation(architectures):
    stages = Layout(data=8, zero_stage=np.arange(4))
    total = training_memory(
        architectures["gpt2-xl"], batch=1, sequence_length=1024, layout=stages
    ).total
    assert (np.diff(total) < 0).all()
    policies = Layout(recompute=np.arange(3))
    kept = training_memory(
        architectures["gpt2-xl"],
        batch=4,
        sequence_length=1024,
        layout=policies,
        flash_attention=False,
    ).activations
    assert (np.diff(kept) < 0).all()
