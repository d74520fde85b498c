"""Calibration: a quick run for real, its record, and what is refused."""

import dataclasses
import json
import time

import numpy as np
import pytest

from steelyard import catalog
from steelyard.catalog.calibrate import calibrate, default_threads
from steelyard.catalog.probes.disk import disk_rates
from steelyard.catalog.probes.link import link_rates
from steelyard.catalog.probes.matmul import matmul_shapes, time_matmuls
from steelyard.catalog.probes.timing import Samples, host_clock, quietest, repeat
from steelyard.catalog.stored import calibration_path
from steelyard.errors import BackendError, CalibrationError, ConfigError

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    told = []
    threads = torch.get_num_threads()
    result = calibrate(
        quick=True,
        progress=lambda text, done: told.append((text, done)),
        folder=tmp_path_factory.mktemp("disk"),
    )
    assert torch.get_num_threads() == threads
    return result, told


def test_quick_run_measures_everything_in_time(quick):
    found, _ = quick
    assert found.duration_s < 40
    rates = [
        name
        for name in dir(found)
        if name.endswith(("_per_s", "_latency_s"))
        and name not in ("host_link_bytes_per_s", "best_flops_per_s")
    ]
    for name in rates:
        assert getattr(found, name) > 0, name
    assert 1e-8 < found.launch_s < 1e-2
    assert found.num_threads == default_threads()
    assert found.versions.keys() == {"python", "torch", "numpy"}
    assert found.best_flops_per_s("fp32") > 1e8 and found.best_flops_per_s("fp8") == 0
    assert 0 <= found.noise < 20


def test_quick_run_times_skinny_and_square_products(quick):
    shapes = {(point.m, point.n, point.k) for point in quick[0].matmul if point.dtype == "fp32"}
    assert {1, 8, 64, 512} <= {m for m, _, _ in shapes}
    assert (512, 512, 512) in shapes
    assert all(point.flops_per_s > 0 and point.spread >= 0 for point in quick[0].matmul)


def test_quick_run_gives_quantities_with_spread_and_count(quick):
    measured = {item.quantity: item for item in quick[0].measurements}
    assert {
        "machine.matmul",
        "machine.stream",
        "machine.gather",
        "machine.launch",
        "machine.link_latency",
    } <= measured.keys()
    assert measured["machine.stream"].value == pytest.approx(quick[0].stream_bytes_per_s)
    assert all(item.count >= 3 for name, item in measured.items() if "disk" not in name)


def test_progress_moves_forward_to_one(quick):
    done = [fraction for _, fraction in quick[1]]
    assert done == sorted(done) and done[-1] == 1.0 and done[0] < 0.1


def test_stored_calibration_is_the_record_of_this_machine(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    assert catalog.load_calibration() is None
    catalog.store_calibration(quick[0])
    assert catalog.load_calibration() == quick[0]
    record = catalog.accelerator("this-machine")
    assert record.confidence == "measured" and record.kind == "cpu"
    assert record.peak_flops_per_s["fp32"] == quick[0].best_flops_per_s("fp32")
    assert record.memory_bytes_per_s == quick[0].stream_bytes_per_s
    assert catalog.cluster("this machine").num_accelerators == 1
    assert catalog.names("accelerators")[-1] == "this-machine"


@pytest.mark.parametrize("text", ["{", "[]", '{"machine": "this-machine"}', '{"machine": 3}'])
def test_a_damaged_store_asks_to_calibrate_again(tmp_path, monkeypatch, text):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    calibration_path().write_text(text)
    with pytest.raises(CalibrationError, match=r"calibration\.json") as caught:
        catalog.load_calibration()
    assert "steelyard calibrate" in caught.value.hint


def test_a_record_of_an_older_version_still_loads(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    path = catalog.store_calibration(quick[0])
    values = json.loads(path.read_text())
    for name in ("disk_direct", "shared_latency_s", "shared_bytes_per_s", "host_link_bytes_per_s"):
        values.pop(name)
    path.write_text(json.dumps(values))
    loaded = catalog.load_calibration()
    assert loaded is not None and loaded.shared_bytes_per_s == 0
    assert dataclasses.replace(loaded, disk_direct=quick[0].disk_direct).matmul == quick[0].matmul


def test_unknown_device_and_negative_threads_are_refused():
    with pytest.raises(ConfigError, match="'tpu'"):
        calibrate(device="tpu")
    with pytest.raises(ConfigError, match="-1"):
        calibrate(num_threads=-1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")
def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(BackendError, match="no CUDA device"):
        calibrate(device="cuda", quick=True)


def test_medians_ignore_one_disturbance_and_rounds_keep_the_quiet_one():
    disturbed = Samples((1.0, 1.0, 1.0, 9.0))
    assert disturbed.median_s == 1.0 and disturbed.rate(8.0) == 8.0
    merged = quietest([Samples((2.0, 2.0, 2.0)), Samples((1.0, 1.0, 1.0))])
    assert merged.median_s == 1.0 and merged.spread == pytest.approx(1 / 1.5)
    assert merged.measurement("machine.launch").count == 6


def test_repeat_keeps_to_its_time():
    start = time.perf_counter()
    samples = repeat(lambda: time.sleep(0.01), host_clock, repeats=100, most_s=0.1)
    assert time.perf_counter() - start < 1.0
    assert 3 <= len(samples.seconds) < 100 and samples.median_s > 0.009


def test_shapes_grow_and_a_spent_budget_skips_the_rest():
    shapes = matmul_shapes(device="cpu", quick=False)
    work = [m * n * k for m, n, k in shapes]
    assert work == sorted(work) and len(set(shapes)) == len(shapes)
    assert set(matmul_shapes(device="cpu", quick=True)) <= set(shapes)
    few = time_matmuls("fp32", device="cpu", quick=True, budget_s=0.0)
    assert list(few) == matmul_shapes(device="cpu", quick=True)[:1]


def test_disk_probe_leaves_nothing_behind(tmp_path):
    rates = disk_rates(tmp_path, quick=True)
    assert rates.write is not None and rates.read is not None and rates.size_bytes <= 32 * 2**20
    assert list(tmp_path.iterdir()) == []


def test_disk_probe_keeps_off_a_full_disk(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 2**20})
    monkeypatch.setattr("steelyard.catalog.probes.disk.shutil.disk_usage", lambda _: usage)
    assert disk_rates(tmp_path, quick=True).write is None


def test_links_order_as_physics_says():
    links = link_rates(quick=True)
    assert 0 < links.tcp_one_way.median_s < 0.1 and 0 < links.pipe_one_way.median_s < 0.1
    assert links.tcp_message.median_s > links.tcp_one_way.median_s
    assert links.message_bytes / links.shared_message.median_s > 1e7


def test_a_silent_far_end_is_an_error(monkeypatch):
    monkeypatch.setattr("steelyard.catalog.probes.link.sys.executable", "/bin/false")
    monkeypatch.setattr("steelyard.catalog.probes.link._TIMEOUT_S", 0.2)
    with pytest.raises(CalibrationError, match="second process"):
        link_rates(quick=True)


@pytest.mark.slow
def test_full_run_ends_within_two_minutes(tmp_path):
    found = calibrate(folder=tmp_path)
    assert found.duration_s < 120
    widths = {(point.k, point.n) for point in found.matmul if point.dtype == "fp32"}
    assert {(256, 512), (512, 1024), (1024, 1024)} <= widths
    assert np.isfinite(found.noise)


@pytest.mark.gpu
def test_cuda_run(tmp_path):
    found = calibrate(quick=True, device="cuda", folder=tmp_path)
    assert found.device == "cuda" and found.host_link_bytes_per_s > 0
    assert found.best_flops_per_s("bf16") > found.best_flops_per_s("fp32") > 0
    assert found.stream_bytes_per_s > 1e10
