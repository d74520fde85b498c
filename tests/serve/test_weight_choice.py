import json
from dataclasses import replace

import pytest
from tests.made_rates import made_calibration, made_rates

from steelyard.catalog import architecture_by_name, store_calibration
from steelyard.errors import ConfigError
from steelyard.nn import checkpoint
from steelyard.serve import choose_weights
from steelyard.serve.build import make_engine
from steelyard.serve.options import EngineOptions
from steelyard.serve.weight_choice import ServingLoad, with_weights

ARCH = architecture_by_name("smollm-135m")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def folder(home, model):
    checkpoint.save(model, home / "model")
    return home / "model"


def chosen(**how):
    return choose_weights(ARCH, made_rates(), ServingLoad(users=1), **how).weights


def test_the_fastest_type_within_the_loss_is_taken():
    assert chosen() == "fp32"
    assert chosen(max_loss=0.001) == "int8"
    assert chosen(max_loss=0.02) == "int4"
    # What is no narrower than the stored weights loses nothing.
    assert chosen(stored="bf16") == "bf16"
    assert chosen(stored="int4") == "int4"
    assert chosen(stored="bf16", max_loss=0.001) == "int8"
    assert chosen(stored="fp16") == "fp32"


def test_float16_is_read_from_two_bytes_in_products_of_float32():
    kinds = {
        stored: {item.weights: item for item in found.candidates}
        for stored in ("fp32", "fp16")
        for found in [choose_weights(ARCH, made_rates(), ServingLoad(users=1), stored=stored)]
    }
    wide, half = (kinds[stored]["fp32"].tpot.value for stored in ("fp32", "fp16"))
    assert half < 0.75 * wide
    assert kinds["fp16"]["bf16"].loss.value > kinds["fp16"]["fp32"].loss.value == 0
    assert kinds["fp16"]["bf16"].tpot == kinds["fp32"]["bf16"].tpot


def test_a_choice_says_what_a_larger_loss_would_give():
    found = choose_weights(ARCH, made_rates(), max_loss=0.001)
    times = [item.busy_tpot.value for item in found.candidates]
    assert times == sorted(times) and len(times) == 4
    assert "within a loss of 0.10%" in found.words() and "ms per token" in found.words()
    for item in found.candidates:
        assert item.tpot.low < item.tpot.value < item.tpot.high
        assert item.tpot.value <= item.step_tpot.value <= item.busy_tpot.value


def test_many_users_decide_by_operations():
    peaks = {"fp32": 1.0, "bf16": 30.0, "int8": 1.0, "int4": 30.0}
    slow = [
        replace(
            item, s_per_weight=item.s_per_weight * (peaks[item.weights] if item.rows > 8 else 1)
        )
        for item in made_rates().products
    ]
    rates = made_rates(products=tuple(slow))
    few, many = (
        choose_weights(ARCH, rates, ServingLoad(users=users, output_tokens=0), stored="bf16")
        for users in (1, 64)
    )
    assert (few.weights, many.weights) == ("bf16", "fp32")


def test_auto_weights_are_those_of_the_folder_where_nothing_was_calibrated(folder):
    options = EngineOptions()
    same, choice, note = with_weights(options, folder)
    assert same is options and choice is None and "steelyard calibrate" in note
    store_calibration(made_calibration())
    assert "steelyard calibrate" in with_weights(options, folder)[2]


def test_auto_weights_are_chosen_on_a_calibrated_machine(folder):
    store_calibration(made_calibration(made_rates()))
    kept, choice, note = with_weights(EngineOptions(), folder)
    assert kept.weights == "fp32" and choice and choice.stored == "fp32" and "fp32" in note
    narrow = with_weights(EngineOptions(max_loss=0.05), folder)[0]
    assert narrow.weights in ("int8", "int4")
    llm = make_engine(folder, EngineOptions(max_loss=0.05, pool_bytes=1 << 16, native=None))
    assert llm.runner.weights == narrow.weights
    for given in (EngineOptions(weights="bf16"), EngineOptions(native=False)):
        assert with_weights(given, folder) == (given, None, "")


def test_folders_that_are_quantized_or_broken_are_left_to_the_loader(folder):
    store_calibration(made_calibration(made_rates()))
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": {}}))
    assert with_weights(EngineOptions(), folder)[1] is None
    config.write_text("{")
    assert with_weights(EngineOptions(), folder)[1] is None
    assert with_weights(EngineOptions(), folder / "nowhere")[1] is None


def test_a_loss_without_auto_weights_is_refused():
    with pytest.raises(ConfigError, match="--weights auto"):
        EngineOptions(weights="int8", max_loss=0.01)
    with pytest.raises(ConfigError, match="max_loss"):
        EngineOptions(max_loss=-0.1)
