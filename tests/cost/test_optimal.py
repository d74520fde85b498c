import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import catalog
from steelyard.catalog.hardware import Accelerator
from steelyard.cost import Efficiencies, Machine, optimal_throughput
from steelyard.errors import CalibrationError, CapacityError, CatalogError, ConfigError

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "serving_throughput.csv"
A100 = Machine.from_accelerator(
    catalog.accelerator("A100-SXM4-80GB"), efficiencies=Efficiencies.peak()
)
LENGTHS = {"prompt_tokens": 512, "output_tokens": 512}


def optimum(name="llama-2-70b", machine=A100, **changes):
    options = LENGTHS | {"tensor_parallel": 8, "gemm_flops_per_s": 260e12} | changes
    return optimal_throughput(catalog.architecture_by_name(name), machine, **options)


def rows():
    with GOLDEN.open() as stream:
        return list(csv.DictReader(stream))


def test_rate_of_the_source():
    found = optimum(parameters=70e9, max_dense_tokens=2048)
    assert found.tokens_per_s_per_device == pytest.approx(1857, rel=0.001)
    assert (
        found.bottleneck == "compute"
        and found.dense_tokens == 2048
        and found.iteration_s == found.compute_s
    )


@pytest.mark.parametrize(
    "row",
    rows(),
    ids=lambda row: f"{row['model']}-{row['system']}-{row['prompt_tokens']}-{row['output_tokens']}",
)
def test_published_rates_lie_below_the_optimum(row):
    lengths = {
        "prompt_tokens": float(row["prompt_tokens"]),
        "output_tokens": float(row["output_tokens"]),
    }
    found = optimum(row["model"], tensor_parallel=int(row["devices"]), **lengths)
    assert found.bottleneck == "compute"
    fraction = found.fraction(float(row["tokens_per_s_per_device"]))
    assert 0.1 < fraction < 0.75
    if row["optimum_fraction"]:
        assert fraction == pytest.approx(float(row["optimum_fraction"]), rel=0.02)


def test_small_decode_batches_are_bound_by_memory():
    found = optimum("llama-3-8b", tensor_parallel=1, requests=32, phase="decode")
    assert found.bottleneck == "memory" and found.dense_tokens == 32 and found.network_s == 0


def test_slow_links_bind():
    slow = Accelerator(
        name="slow-link",
        vendor="",
        kind="gpu",
        year=2024,
        peak_flops_per_s={"bf16": 312e12},
        memory_bytes=80e9,
        memory_bytes_per_s=2e12,
        scale_up_bytes_per_s=30e9,
    )
    assert (
        optimum(machine=Machine.from_accelerator(slow, efficiencies=Efficiencies.peak())).bottleneck
        == "network"
    )


def test_times_of_a_full_iteration():
    """Source: section 3 of the paper.

    Memory size over bandwidth, 2 B P / (N peak), 4 (N - 1) / N B D L S / link.
    """
    found = optimum()
    assert found.memory_s == pytest.approx(80e9 / 2.039e12)
    assert found.compute_s == pytest.approx(
        2 * found.dense_tokens * found.active_parameters / (8 * 260e12)
    )
    assert found.network_s == pytest.approx(4 * 7 / 8 * found.dense_tokens * 8192 * 80 * 2 / 300e9)


def test_experts_multiply_only_where_visited():
    found = optimum("mixtral-8x7b", tensor_parallel=2)
    assert 12e9 < found.active_parameters < 14e9
    if found.bottleneck == "compute":
        assert found.tokens_per_s_per_device == pytest.approx(260e12 / 2 / found.active_parameters)


def test_a_calibrated_machine_brings_its_rate(calibration):
    machine = Machine.from_calibration(calibration)
    found = optimum("qwen2-0.5b", machine=machine, tensor_parallel=1, gemm_flops_per_s=0.0)
    assert found.gemm_flops_per_s == 90e9


@settings(deadline=None)
@given(st.floats(0, 4096), st.floats(1, 4096), st.integers(1, 16), st.floats(64, 1e5))
def test_the_answer_never_beats_any_resource(prompt, output, devices, cap):
    options = {
        "prompt_tokens": prompt,
        "output_tokens": output,
        "tensor_parallel": devices,
        "max_dense_tokens": cap,
    }
    try:
        found = optimum("llama-3-8b", **options)
    except CapacityError:
        return
    rate = found.tokens_per_s_per_device * devices
    assert rate <= devices * 260e12 / 2 / found.active_parameters * (1 + 1e-9)
    for seconds in (found.memory_s, found.compute_s, found.network_s):
        assert rate * seconds <= found.dense_tokens * (1 + 1e-9)
    assert found.dense_tokens <= cap * (1 + 1e-9)


def test_refusals():
    with pytest.raises(CalibrationError, match="datasheet"):
        optimum(gemm_flops_per_s=0.0)
    with pytest.raises(CapacityError, match="does not fit 1 x") as caught:
        optimum(tensor_parallel=1)
    assert "at least 2 devices" in caught.value.hint
    with pytest.raises(CapacityError):
        optimum(requests=1e6)
    with pytest.raises(CatalogError, match="scale_up_bytes_per_s"):
        optimum(
            "llama-3-8b",
            machine=Machine.from_accelerator(
                catalog.accelerator("RTX-4090"), efficiencies=Efficiencies.peak()
            ),
        )
    for changes in (
        {"prompt_tokens": -1},
        {"output_tokens": 0},
        {"tensor_parallel": 0},
        {"requests": -1},
        {"max_dense_tokens": 0},
        {"phase": "prefill"},
        {"gemm_flops_per_s": -1.0},
        {"output_tokens": float("nan")},
    ):
        with pytest.raises(ConfigError):
            optimum(**changes)
