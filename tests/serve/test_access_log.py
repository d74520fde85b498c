import csv
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from steelyard.cli.access_log import calibrate
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import step_features
from steelyard.errors import CapacityError, ConfigError, TraceError
from steelyard.serve.access_log import AccessLog
from steelyard.serve.log_fit import calibrate_log
from steelyard.serve.log_steps import LogSteps
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet

TRUTH = PhaseStepTime(
    coefficients=(
        (1e-3, 0, 3e-4, 1e-7, 0, 0, 0),
        (4e-3, 0, 0, 0, 0, 8e-7, 0),
        (4e-4, 0, 0, 0, 4.5e-4, 8e-7, 0),
        (1e-3, 0, 3e-4, 1e-7, 4e-4, 8e-7, 0),
        (1e-3, 0, 3e-4, 1e-7, 4e-4, 8e-7, 0),
    ),
    large_batch=8,
    relative_spread=0.0,
    source="made up",
)
LIMITS = ReplicaGroup(step_time=TRUTH, blocks=1200, token_budget=256, max_num_seqs=32)


def answered(seed=0, noise=0.0, knows_first=True):
    """Return what the true server would log of three loads."""
    generator = np.random.default_rng(seed)
    gaps = np.concatenate([generator.exponential(1 / rate, 70) for rate in (3, 7, 11)])
    arrival = np.cumsum(gaps)
    prompts = np.clip(generator.lognormal(4.5, 0.6, 210), 4, 600).astype(int)
    outputs = np.clip(generator.lognormal(3.6, 0.6, 210), 1, 200).astype(int)
    seen = simulate_fleet([LIMITS], arrival, prompts, outputs).timeline
    factor = np.exp(generator.normal(0, noise, 210))
    return AccessLog(
        arrival_s=arrival,
        input_tokens=prompts,
        output_tokens=outputs,
        latency_s=(seen.last_token_s - arrival) * factor,
        ttft_s=seen.ttft_s * factor if knows_first else np.full(210, math.nan),
    )


@pytest.mark.parametrize("knows_first", [True, False])
def test_times_of_requests_are_sums_over_steps(knows_first):
    log = answered(knows_first=knows_first)
    steps = LogSteps.simulate(log, LIMITS, TRUTH)
    spent = replace(steps, table=(steps.end_s - steps.start_s)[:, None])
    rows, seconds = spent.sums(np.ones(210, dtype=bool))
    assert len(seconds) >= 210 and rows[:, 0] == pytest.approx(seconds, rel=1e-6)
    assert steps.distance(np.ones(210, dtype=bool)) < 1e-9


def test_features_of_steps_are_those_of_the_simulator():
    """Times follow from the features, but for pairs of divided prompts."""
    log = answered()
    steps = LogSteps.simulate(log, LIMITS, TRUTH)
    whole = TRUTH.predict(steps.features) / (steps.end_s - steps.start_s)
    assert np.median(np.abs(whole - 1)) < 1e-9 and np.mean(np.abs(whole - 1) > 0.01) < 0.02


@pytest.mark.parametrize(("knows_first", "error"), [(True, 0.03), (False, 0.06)])
def test_a_log_gives_the_servers_step_times(knows_first, error):
    found = calibrate_log(answered(1, 0.05, knows_first), LIMITS)
    features = np.array(
        [
            step_features(
                sequences=batch + (prompt > 0),
                prefill_tokens=prompt,
                prefill_kv=prompt * (prompt + 1) / 2,
                decode_tokens=batch,
                decode_kv=150 * batch,
            )
            for batch, prompt in ((1, 0), (4, 0), (12, 0), (1, 100), (6, 100), (3, 200))
        ]
    )
    off = found.step_time.predict(features) / TRUTH.predict(features) - 1
    assert np.median(np.abs(off)) < error
    assert found.rows == 210 and found.test_rows == 63 and found.test_error < 0.12
    assert all(step.low < step.seconds < step.high for step in found.steps)
    assert 0 < found.step_time.relative_spread < 0.2
    assert (found.test_ttft_error > 0) == knows_first


def written(path, log, **changes):
    """Write a log; `changes` are cells of its first row."""
    columns = {
        "arrival_s": log.arrival_s,
        "prompt_tokens": log.input_tokens,
        "completion_tokens": log.output_tokens,
        "latency_s": log.latency_s,
        "ttft_s": log.ttft_s,
    }
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        for row, cells in enumerate(zip(*columns.values(), strict=True)):
            named = dict(zip(columns, cells, strict=True)) | (changes if row == 0 else {})
            writer.writerow(named.values())
    return path


def test_a_log_is_read_in_any_order_and_with_empty_first_tokens(tmp_path):
    log = answered()
    path = written(tmp_path / "log.csv", log, ttft_s="")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *reversed(lines[1:])]))
    read = AccessLog.read(path)
    assert read.arrival_s == pytest.approx(log.arrival_s - log.arrival_s[0])
    assert (read.input_tokens == log.input_tokens).all() and math.isnan(read.ttft_s[0])


def test_a_load_of_the_bench_is_a_log(tmp_path):
    log, path = answered(), tmp_path / "requests.parquet"
    frame = pl.DataFrame(
        {
            "sent_s": log.arrival_s,
            "prompt_tokens": log.input_tokens,
            "output_tokens": log.output_tokens,
            "e2e_s": log.latency_s,
            "ttft_s": [None, *log.ttft_s[1:]],
            "error": ["", "timeout", *[""] * 208],
            "concurrency": [0] * 210,
        }
    )
    frame.write_parquet(path)
    read = AccessLog.read(path)
    assert len(read.arrival_s) == 209 and math.isnan(read.ttft_s[0])
    assert read.latency_s[1:] == pytest.approx(log.latency_s[2:])
    frame.with_columns(concurrency=pl.int_range(210)).write_parquet(path)
    with pytest.raises(TraceError, match="several levels"):
        AccessLog.read(path)
    path.write_text("no table")
    with pytest.raises(TraceError, match="cannot read"):
        AccessLog.read(path)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"prompt_tokens": 0}, "line 2: prompt_tokens is 0"),
        ({"prompt_tokens": 1.5}, "line 2: prompt_tokens is '1.5'"),
        ({"completion_tokens": -3}, "line 2: completion_tokens is -3"),
        ({"latency_s": 0}, "line 2: latency_s is 0"),
        ({"latency_s": "nan"}, "line 2: latency_s is nan"),
        ({"arrival_s": "noon"}, "line 2: arrival_s is 'noon'"),
        ({"ttft_s": 1e9}, "line 2: ttft_s is 1000000000.0"),
        ({"ttft_s": 0}, "line 2: ttft_s is 0"),
    ],
)
def test_bad_rows_are_refused_by_file_line_and_field(tmp_path, cells, said):
    path = written(tmp_path / "log.csv", answered(), **cells)
    with pytest.raises(TraceError, match=r"log\.csv") as caught:
        AccessLog.read(path)
    assert said in str(caught.value) and caught.value.hint


def test_logs_without_a_column_or_with_few_rows_are_refused(tmp_path):
    path = written(tmp_path / "log.csv", answered())
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:20]))
    with pytest.raises(TraceError, match="19 rows"):
        AccessLog.read(path)
    path.write_text("\n".join([lines[0].replace("latency_s", "what"), *lines[1:]]))
    with pytest.raises(TraceError, match="no column latency_s or e2e_s"):
        AccessLog.read(path)
    with pytest.raises(TraceError, match=r"none\.csv"):
        AccessLog.read(tmp_path / "none.csv")


def test_the_verb_stores_what_is_read_as_a_profile(tmp_path, capsys):
    path, out = written(tmp_path / "log.csv", answered()), tmp_path / "steps.json"
    limits = {"token_budget": 256, "max_num_seqs": 32}
    calibrate(path, out=out, **limits, kv_tokens=19_200)
    shown = " ".join(capsys.readouterr().out.split())
    assert "80 % interval" in shown and "63 requests" in shown
    decode = [1, 1, 0, 0, 1, 100, 1]
    assert PhaseStepTime.load(out).predict(decode) == pytest.approx(4.08e-3, rel=0.02)
    with pytest.raises(CapacityError):
        calibrate(path, out=out, **limits, kv_tokens=64)
    with pytest.raises(ConfigError, match="--token-budget"):
        calibrate(path, out=out, token_budget=0)
