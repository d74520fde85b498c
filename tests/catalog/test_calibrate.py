"""Calibration: every probe on a clock of the test's own, the record, and what is refused."""

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from steelyard import catalog
from steelyard.catalog.calibrate import _Findings, calibrate, default_threads
from steelyard.catalog.probes.disk import disk_rates
from steelyard.catalog.probes.link import link_rates
from steelyard.catalog.probes.matmul import matmul_shapes, time_matmuls
from steelyard.catalog.probes.timing import Samples, quietest, repeat
from steelyard.catalog.stored import calibration_path
from steelyard.cost import Machine
from steelyard.errors import BackendError, CalibrationError, ConfigError

torch = pytest.importorskip("torch")


SHAPES = [(1, 32, 32), (8, 32, 32), (16, 16, 16), (32, 32, 32)]
CALL_S = 0.004
"""Seconds that the fake clock says every call takes, whatever the machine does."""


def fake_clock(call, loops):
    call()
    return CALL_S * loops


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Run every probe for real, but small and on a clock that does not depend on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        probes = "steelyard.catalog.probes."
        patch.setattr(probes + "matmul.matmul_shapes", lambda **_: SHAPES)
        patch.setattr(probes + "matmul.time.perf_counter", lambda: 0.0)
        patch.setattr(probes + "memory.memory_bytes", lambda device: 8 * 2.0**20)
        patch.setattr(probes + "memory.last_level_cache_bytes", lambda device: 2**20)
        patch.setattr(probes + "link._MESSAGE_BYTES", 2**16)
        patch.setattr(probes + "kernels._OPERATIONS", 3)
        patch.setattr(probes + "disk.shutil.disk_usage", lambda _: SimpleNamespace(free=20 * 2**22))
        told = []
        threads = torch.get_num_threads()
        result = calibrate(
            quick=True,
            progress=lambda text, done: told.append((text, done)),
            folder=tmp_path_factory.mktemp("disk"),
            clock=fake_clock,
            # A busy machine under test is neither waited for nor refused.
            patience_s=0.0,
            force=True,
        )
        assert torch.get_num_threads() == threads
    return result, told


def test_every_rate_is_work_over_the_clocks_time(quick):
    found, _ = quick
    assert found.num_threads == default_threads()
    assert found.versions.keys() == {"python", "torch", "numpy"}
    assert found.noise == 0.0
    assert found.launch_s == CALL_S
    assert found.link_latency_s == found.shared_latency_s == CALL_S / 2
    assert found.link_bytes_per_s == found.shared_bytes_per_s == 2**16 / CALL_S
    triad = 12 * (2**20 // 12)
    assert found.stream_bytes_per_s == triad / CALL_S
    assert found.cache_bytes_per_s == 12 * (2**20 // 8 // 12) / CALL_S
    assert found.gather_bytes_per_s == 2**16 * 256 / CALL_S
    assert found.attention_flops_per_s > 0 and found.elementwise_bytes_per_s > 0
    assert found.disk_read_bytes_per_s == found.disk_write_bytes_per_s == 2**22 / CALL_S
    assert found.best_flops_per_s("fp32") == 2 * 32**3 / CALL_S
    assert found.best_flops_per_s("fp8") == 0


def test_products_of_every_dtype_and_shape_are_timed(quick):
    points = [(point.dtype, (point.m, point.n, point.k)) for point in quick[0].matmul]
    assert points == [(dtype, shape) for dtype in ("fp32", "bf16", "fp16") for shape in SHAPES]
    assert all(point.flops_per_s > 0 and point.spread == 0 for point in quick[0].matmul)


def test_a_calibration_holds_quantities_with_spread_and_count(quick):
    measured = {item.quantity: item for item in quick[0].measurements}
    assert {
        "machine.matmul",
        "machine.stream",
        "machine.gather",
        "machine.launch",
        "machine.link_latency",
    } <= measured.keys()
    assert measured["machine.stream"].value == pytest.approx(quick[0].stream_bytes_per_s)
    assert measured["machine.matmul"].value == pytest.approx(2 * 32**3 / CALL_S)
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
    for name in (
        "contention",
        "disk_direct",
        "shared_latency_s",
        "shared_bytes_per_s",
        "host_link_bytes_per_s",
    ):
        values.pop(name)
    path.write_text(json.dumps(values))
    loaded = catalog.load_calibration()
    assert loaded is not None and loaded.shared_bytes_per_s == 0
    assert loaded.contention == 0
    assert dataclasses.replace(loaded, disk_direct=quick[0].disk_direct).matmul == quick[0].matmul


def test_disturbed_rates_widen_the_intervals_of_what_is_planned_on_them(quick):
    calm = dataclasses.replace(quick[0], contention=0.0, noise=0.0)
    busy = dataclasses.replace(quick[0], contention=0.5, noise=0.1)
    assert calm.disturbance == 0.0 and busy.disturbance == pytest.approx(math.hypot(1.0, 0.1))
    widths = [Machine.from_calibration(item).calibrated_relative for item in (calm, busy)]
    assert widths == pytest.approx([0.2, math.hypot(0.2, busy.disturbance)])


def test_a_dtype_of_which_no_square_was_timed_is_left_out():
    found = _Findings()
    slow, fast = Samples((9.0,) * 3), Samples((1e-3,) * 3)
    found.matmul = {("fp32", (16, 16, 16)): [fast], ("bf16", (1, 32, 32)): [slow]}
    assert [point.dtype for point in found.points()] == ["fp32"]


def test_figures_that_scatter_too_much_are_refused(monkeypatch):
    scattered = Samples((1.0, 2.0, 3.0, 4.0))
    module = "steelyard.catalog.calibrate."
    monkeypatch.setattr(module + "_measure_matmul", lambda *_: None)
    monkeypatch.setattr(module + "_memory_rates", lambda *_: {"stream_bytes_per_s": (scattered, 1)})
    rates = ("cache_bytes_per_s", "gather_bytes_per_s", "link_bytes_per_s", "link_latency_s")
    host = dict.fromkeys((*rates, "launch_s"), (scattered, 1.0))
    monkeypatch.setattr(module + "_host_rates", lambda *_: host)
    monkeypatch.setattr(module + "_disk_rates", lambda *_: ({}, False))
    monkeypatch.setattr("steelyard.catalog.quiet.MOST_LOST", 1.0)
    with pytest.raises(CalibrationError, match="scatter by 60 %"):
        calibrate(quick=True, patience_s=0.0)
    assert calibrate(quick=True, patience_s=0.0, force=True).noise == pytest.approx(0.6)


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


def test_repeat_stops_once_its_time_is_spent():
    spent = []

    def clock(call, loops):
        spent.append(loops * 0.25)
        return spent[-1]

    samples = repeat(lambda: None, clock, repeats=100, most_s=2.5)
    assert len(samples.seconds) == 10 and samples.median_s == 0.25
    assert len(spent) == 11  # and the one that counts the loops
    assert len(repeat(lambda: None, clock, repeats=2, most_s=0.0).seconds) == 3


def test_repeat_loops_fewer_times_when_the_first_call_was_fast_by_chance():
    asked = []

    def clock(call, loops):
        asked.append(loops)
        return 1e-6 if len(asked) == 1 else loops * 1e-3

    repeat(lambda: None, clock, repeats=5, least_s=0.003)
    assert asked[1] == 3000 and asked[-1] < 100


def test_a_slow_dtype_skips_the_shapes_that_its_budget_does_not_hold(monkeypatch):
    """On a clock of 1 s a call only the first square is timed once the budget is spent."""
    now = iter(np.arange(100.0))
    monkeypatch.setattr("steelyard.catalog.probes.matmul.time.perf_counter", lambda: next(now))
    monkeypatch.setattr("steelyard.catalog.probes.matmul.matmul_shapes", lambda **_: SHAPES)
    slow = {"device": "cpu", "quick": True, "clock": lambda call, loops: 1.0 * loops}
    assert list(time_matmuls("fp32", budget_s=0.5, **slow)) == SHAPES[:1]
    assert list(time_matmuls("fp32", budget_s=1e3, **slow)) == SHAPES


def test_shapes_grow_and_a_spent_budget_skips_the_rest():
    shapes = matmul_shapes(device="cpu", quick=False)
    work = [m * n * k for m, n, k in shapes]
    assert work == sorted(work) and len(set(shapes)) == len(shapes)
    assert set(matmul_shapes(device="cpu", quick=True)) <= set(shapes)
    few = time_matmuls("fp32", device="cpu", quick=True, budget_s=0.0, clock=fake_clock)
    assert list(few) == matmul_shapes(device="cpu", quick=True)[:1]


def test_disk_probe_leaves_nothing_behind(tmp_path):
    rates, _ = disk_rates(tmp_path, quick=True)
    assert rates.keys() == {"disk_write_bytes_per_s", "disk_read_bytes_per_s"}
    assert all(0 < size <= 32 * 2**20 for _, size in rates.values())
    assert list(tmp_path.iterdir()) == []


def test_disk_probe_keeps_off_a_full_disk(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 2**20})
    monkeypatch.setattr("steelyard.catalog.probes.disk.shutil.disk_usage", lambda _: usage)
    assert disk_rates(tmp_path, quick=True) == ({}, False)


def test_links_are_exchanged_with_a_second_process(monkeypatch):
    monkeypatch.setattr("steelyard.catalog.probes.link._MESSAGE_BYTES", 2**16)
    links = link_rates(quick=True, clock=fake_clock)
    assert {name: (samples.median_s, work) for name, (samples, work) in links.items()} == {
        "link_latency_s": (CALL_S / 2, 0),
        "link_bytes_per_s": (CALL_S, 2**16),
        "shared_latency_s": (CALL_S / 2, 0),
        "shared_bytes_per_s": (CALL_S, 2**16),
    }


def test_a_silent_far_end_is_an_error(monkeypatch):
    monkeypatch.setattr("steelyard.catalog.probes.link.sys.executable", "/bin/false")
    monkeypatch.setattr("steelyard.catalog.probes.link._TIMEOUT_S", 0.2)
    with pytest.raises(CalibrationError, match="second process"):
        link_rates(quick=True)


@pytest.mark.slow
def test_a_quick_run_takes_less_than_a_full_one_and_measures_as_much(tmp_path):
    quick, full = (calibrate(quick=quick, folder=tmp_path) for quick in (True, False))
    assert quick.duration_s < full.duration_s
    for found in (quick, full):
        rates = {name for name in dir(found) if name.endswith(("_per_s", "_latency_s", "launch_s"))}
        for name in rates - {"host_link_bytes_per_s", "best_flops_per_s"}:
            assert getattr(found, name) > 0, name
        assert np.isfinite(found.noise)
    widths = {(point.k, point.n) for point in full.matmul if point.dtype == "fp32"}
    assert {(256, 512), (512, 1024), (1024, 1024)} <= widths


@pytest.mark.slow
def test_large_messages_take_longer_than_small_ones():
    seconds = {name: samples.median_s for name, (samples, _) in link_rates(quick=True).items()}
    assert seconds["link_bytes_per_s"] > seconds["link_latency_s"] > 0
    assert seconds["shared_bytes_per_s"] > seconds["shared_latency_s"] > 0


@pytest.mark.gpu
def test_cuda_run(tmp_path):
    found = calibrate(quick=True, device="cuda", folder=tmp_path)
    assert found.device == "cuda" and found.host_link_bytes_per_s > 0
    assert found.best_flops_per_s("bf16") > found.best_flops_per_s("fp32") > 0
    assert found.stream_bytes_per_s > 1e10
