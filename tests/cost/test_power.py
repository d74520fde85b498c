"""Power and energy of serving: the fits, held-out settings, and what the knobs do."""

import numpy as np
import pytest

from steelyard import catalog
from steelyard.cost.power import (
    EnergyModel,
    fit_curve,
    fit_times,
    measured_model,
    measured_rows,
    read_rows,
)
from steelyard.errors import ConfigError, DataError, FitError

A100 = catalog.accelerator("A100-SXM4-80GB")


def held_out_errors(parity):
    """Return relative errors of mean, peak and energy on the settings that were not fitted."""
    settings = sorted({row.setting for row in measured_rows()})
    chosen = set(settings[parity::2])
    fitted = [row for row in measured_rows() if row.setting in chosen]
    curve = fit_curve(fitted, A100)
    errors = []
    for kind in sorted({setting[:2] for setting in settings}):
        model = EnergyModel(
            arch=catalog.architecture_by_name(kind[0]),
            accelerator=A100,
            tensor_parallel=kind[1],
            step_time=fit_times([row for row in fitted if row.setting[:2] == kind]),
            curve=curve,
        )
        for row in measured_rows():
            if row.setting in chosen or row.setting[:2] != kind:
                continue
            cost = model.request(row.prompt_tokens, row.output_tokens, row.batch)
            peak = model.prompt_peak_w(row.prompt_tokens, row.batch) / 400 / kind[1]
            joules = row.mean * 400 * kind[1] * row.request_s
            errors.append((model.draw(cost) / row.mean, peak / row.peak, cost.energy_j / joules))
    return np.abs(np.array(errors) - 1).mean(axis=0)


@pytest.mark.parametrize("parity", [0, 1])
def test_half_of_the_settings_predicts_the_other_half(parity):
    mean, peak, energy = held_out_errors(parity)
    assert mean < 0.05
    assert peak < 0.08
    assert energy < 0.08


def test_longer_prompts_cost_more_per_request_and_less_per_token():
    model = measured_model("llama-2-70b", 4)
    short, long = model.prompt(256), model.prompt(2048)
    assert long.energy_j > short.energy_j
    assert long.energy_j / 2048 < short.energy_j / 256
    one, two, three = (model.request(512, size).energy_j for size in (100, 200, 300))
    assert three - two == pytest.approx(two - one, rel=0.02)


def test_a_token_gets_cheaper_with_the_batch_and_then_hardly():
    model = measured_model("llama-2-70b", 2)
    per_token = [model.token(640, batch).energy_j / batch for batch in (1, 4, 16, 64)]
    assert per_token == sorted(per_token, reverse=True)
    assert per_token[0] / per_token[1] > 3 > per_token[2] / per_token[3]


def test_wider_copies_are_faster_and_take_more():
    narrow, wide = (measured_model("llama-2-70b", width).request(512, 128) for width in (2, 8))
    assert wide.time_s < narrow.time_s
    # 1.9 times were measured.
    assert 1.6 < wide.energy_j / narrow.energy_j < 2.2


@pytest.mark.parametrize("cost", ["prompt", "token"])
def test_energy_is_least_between_the_lowest_and_the_highest_clock(cost):
    model = measured_model("llama-2-70b", 4)
    clocks = np.linspace(0.1, 1.0, 91)
    joules = [getattr(model, cost)(1024, clock=clock).energy_j for clock in clocks.tolist()]
    assert 0 < int(np.argmin(joules)) < 90
    assert np.diff(np.sign(np.diff(joules))).nonzero()[0].size == 1


def test_a_cap_sets_the_highest_clock_under_it():
    curve = measured_model("bloom-176b", 8).curve
    clock = curve.clock_under(300.0, 400.0)
    assert curve.clocked_w(400.0, clock) == pytest.approx(300.0)
    assert curve.clock_under(500.0, 400.0) == 1.0
    with pytest.raises(ConfigError, match="above the 60 W"):
        curve.clock_under(50.0, 400.0)


def test_models_that_were_not_measured_are_named():
    with pytest.raises(FitError, match="llama-2-70b on 3"):
        measured_model("llama-2-70b", 3)
    with pytest.raises(FitError, match="six settings"):
        fit_curve(measured_rows()[:5], A100)
    with pytest.raises(FitError, match="not 4"):
        fit_times(measured_rows())


HEAD = ",".join(
    (
        "model,tensor_parallel,prompt_tokens,batch_size,output_tokens,peak_power_per_tdp",
        "average_power_per_tdp,prefill_ms,decode_ms_per_token,end_to_end_ms",
    )
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "lacks model"),
        (f"{HEAD}\nm,1,2,3,four,1,1,1,1,1\n", "line 2"),
        (f"{HEAD}\nm,1,2,0,4,1,1,1,1,1\n", "1 or more"),
        (f"{HEAD}\nm,1,2,3,4,,,1,1,1\n", "no row with power"),
    ],
)
def test_files_that_cannot_be_used_say_where(tmp_path, text, words):
    path = tmp_path / "power.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        read_rows(path)
