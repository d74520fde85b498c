import json

import numpy as np
import pytest

from steelyard.catalog.architecture import Architecture
from steelyard.config import to_plain
from steelyard.cost import FEATURES, ServeStepTime
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.errors import ConfigError, DataError
from steelyard.nn.transformer import build
from steelyard.serve import SamplingParams, SchedulerConfig
from steelyard.serve.engine import LLM
from steelyard.serve.profile import profile, read_table, write_table
from steelyard.serve.step_table import StepSamples


def config(**changes):
    return SchedulerConfig(
        **(
            {
                "num_blocks": 64,
                "block_size": 8,
                "token_budget": 32,
                "max_num_seqs": 8,
                "max_model_len": 96,
            }
            | changes
        )
    )


@pytest.fixture(scope="module")
def llm(model):
    return LLM(model, config())


@pytest.fixture(scope="module")
def table(llm, tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "steps.json"
    return path, write_table(llm, path, rounds=2, limit_s=0.5)


def test_a_table_returns_as_written(llm, table):
    path, written = table
    assert read_table(path, llm) == written == read_table(path)
    assert (
        written.model == llm.model.architecture
        and written.config == llm.config
        and written.dtype == "float32"
    )
    assert written.test_steps > 0 and 0 <= written.test_error <= written.test_error_p90
    assert "torch" in written.versions and written.machine.threads == 1
    assert not llm.scheduler.has_work


def test_the_cost_room_reads_the_model_of_a_table(table):
    path, written = table
    assert PhaseStepTime.load(path) == written.step_time
    assert written.step_time.source.startswith(f"fitted on {len(written.seconds)} steps of tiny")


def test_tables_of_the_first_schema_are_read(llm, table, tmp_path):
    line = ServeStepTime(coefficients=(1e-3,) * len(FEATURES), relative_spread=0.1, count=9)
    old = changed(table[0], tmp_path / "old.json", schema=1, step_time=to_plain(line))
    assert read_table(old, llm).step_time == PhaseStepTime.of(line) == PhaseStepTime.load(old)


def test_the_fit_predicts_what_it_was_fitted_on():
    generator = np.random.default_rng(0)
    features = np.abs(generator.normal(1, 1, (50, len(FEATURES)))) * np.array(
        [0, 8, 64, 2000, 8, 800, 8]
    ) + np.eye(1, len(FEATURES))
    truth = features @ np.array([1e-3, 1e-4, 1e-5, 1e-8, 1e-4, 1e-7, 1e-4])
    samples = StepSamples(
        features=features, round_seconds=truth[:, None] * np.array([1.0, 1.0, 1.3])
    )
    assert samples.fit().predict(features) == pytest.approx(truth * 1.1, rel=0.01)


def test_four_of_five_later_runs_are_within_what_three_rounds_showed():
    generator = np.random.default_rng(0)
    features = np.tile([1.0, 2.0, 8.0, 40.0, 4.0, 200.0, 8.0], (10, 1))
    model = PhaseStepTime.of(
        ServeStepTime(coefficients=(1e-3,) * len(FEATURES), relative_spread=0.0, count=9)
    )
    truth = model.predict(features)[:, None]
    inside = []
    for _ in range(2000):
        paces = 1 + 0.1 * generator.standard_normal(4)
        seen = StepSamples(features=features, round_seconds=truth * paces[:3])
        steps = seen.anchor(model)
        ratio = float((truth[0] * paces[3])[0] / steps.predict(features)[0])
        inside.append(abs(ratio - 1) <= seen.drift(steps))
    # The least of 3 % adds a little; a normal law's quantile would hold 70 %.
    assert 0.78 < np.mean(inside) < 0.85


def test_long_contexts_are_covered_without_computing_them(model):
    samples = profile(
        LLM(model, config(num_blocks=100, max_model_len=128)),
        generator=np.random.default_rng(0),
        rounds=1,
        limit_s=60,
    )
    tokens = samples.features[:, 2] + samples.features[:, 4]
    assert samples.features[:, 5].max() > 4 * 48 and tokens.max() <= 32
    assert samples.features[:, 2].min() == 0 and (samples.features[:, 2] > 0).any()


def test_the_same_seed_times_the_same_steps(llm):
    first, second = (
        profile(llm, generator=np.random.default_rng(3), rounds=1, limit_s=0.25).features
        for _ in range(2)
    )
    rows = min(len(first), len(second), 10)
    assert (first[:rows] == second[:rows]).all()


def test_a_busy_engine_is_not_profiled(model, tmp_path):
    busy = LLM(model, config())
    busy.add_request([1, 2], SamplingParams(max_tokens=2))
    with pytest.raises(ConfigError, match="idle"):
        write_table(busy, tmp_path / "steps.json")
    with pytest.raises(ConfigError, match="one step at a time"):
        write_table(LLM(model, config(), asynchronous=True), tmp_path / "steps.json")
    assert not (tmp_path / "steps.json").exists()


def changed(path, to, **fields):
    raw = json.loads(path.read_text())
    for name, value in fields.items():
        raw[name] = value(raw[name]) if callable(value) else value
    to.write_text(json.dumps(raw))
    return to


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schema": 3}, "schema"),
        ({"seconds": lambda old: old[:-1]}, "one row per step"),
        ({"seconds": lambda old: [-1.0, *old[1:]]}, "positive"),
        ({"features": lambda old: [row[:-1] for row in old]}, "one row per step"),
        ({"columns": ["steps"]}, "columns"),
        ({"model": {"name": "x"}}, "hidden_size"),
        ({"step_time": None}, "step_time"),
        ({"color": "red"}, "color"),
    ],
)
def test_broken_tables_are_refused(table, tmp_path, fields, said):
    with pytest.raises(ConfigError, match=said):
        read_table(changed(table[0], tmp_path / "broken.json", **fields), foreign=True)


def test_files_that_are_no_table_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_table(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"schema": 1,')
    with pytest.raises(DataError):
        read_table(tmp_path / "half.json")


def test_tables_of_other_machines_and_models_are_refused_unless_asked(llm, model, table, tmp_path):
    path = table[0]
    elsewhere = changed(
        path, tmp_path / "elsewhere.json", machine=lambda old: old | {"processor": "Abacus"}
    )
    with pytest.raises(ConfigError, match="Abacus") as caught:
        read_table(elsewhere, llm)
    assert "foreign" in caught.value.hint
    assert read_table(elsewhere, llm, foreign=True).machine.processor == "Abacus"
    shape = {
        "hidden_size": 16,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "intermediate_size": 32,
    }
    other = LLM(
        build(Architecture(name="other", vocab_size=97, max_positions=128, **shape), seed=0),
        config(),
    )
    with pytest.raises(ConfigError, match="another shape"):
        read_table(path, other)
    kernel = changed(path, tmp_path / "kernel.json", kernel="abacus")
    with pytest.raises(ConfigError, match="kernel abacus"):
        read_table(kernel, llm)
    with pytest.raises(ConfigError, match="block_size"):
        read_table(path, LLM(model, config(block_size=16)))
