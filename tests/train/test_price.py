import time
from dataclasses import replace

import pytest

from steelyard import catalog
from steelyard.cli import train as cli
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.runs.ledger import Ledger
from steelyard.runs.store import RunStore
from steelyard.train.adaptive_batch import AdaptiveBatch
from steelyard.train.measure.energy import EnergyMeter
from steelyard.train.pace import TIMED_STEPS, RunPace, shortened, time_few_steps
from steelyard.train.price import FORECASTER, price_run
from steelyard.train.trainer import train
from steelyard.train.weight_average import WeightAverage

PACE = RunPace(step_s=2.0, save_s=1.0, evaluation_s=5.0, overhead_s=7.0)


def test_a_run_costs_its_steps_checkpoints_and_evaluations(config):
    # 12 steps; checkpoints at 4, 8, 12 and 5; evaluations at 6 and 12.
    assert PACE.seconds(replace(config, checkpoint_at=(4, 5))) == 7 + 24 + 4 + 10
    assert PACE.seconds(replace(config, checkpoint_every=0, eval_every=5)) == 7 + 24 + 1 + 15
    # From step 6 on: checkpoints at 8 and 12, an evaluation at 12.
    assert PACE.seconds(config, 6) == 7 + 12 + 2 + 5


def test_few_steps_are_timed_apart_from_what_lies_between_them(config, source, tmp_path):
    def slowly(short, folder, on_step):
        assert short.steps == TIMED_STEPS and not short.warmup_steps

        def later(now):
            time.sleep(0.02)
            on_step(now)

        return train(short, source, folder, on_step=later)

    pace = time_few_steps(config, tmp_path / "new", slowly)
    assert 0.02 < pace.step_s < 1 and pace.spread >= 0
    assert pace.evaluation_s >= 0 and pace.save_s >= 0 and pace.overhead_s >= 0
    assert not list((tmp_path / "new").iterdir())


def test_the_short_run_keeps_its_averages_apart_and_its_batch(config):
    windows = tuple(WeightAverage(kind="swa", window=size) for size in (3, 50, 100))
    names = [item.name for item in shortened(replace(config, averages=windows)).averages]
    assert names == ["swa-3", "swa-5", "swa-6"]
    twins = tuple(WeightAverage(kind="swa", window=size) for size in (50, 4))
    assert len(shortened(replace(config, averages=twins)).averages) == 1
    growing = replace(config, accumulation=2, adaptive_batch=AdaptiveBatch(every=1))
    assert shortened(growing).adaptive_batch is None


def test_money_is_exact_where_the_hour_is_priced_and_energy_says_where_it_is_from(config):
    site, machine = catalog.site("world-average"), catalog.accelerator("H100-SXM5-80GB")
    rented = price_run(replace(config, usd_per_hour=3.6), PACE, machine=machine, site=site)
    said = {item.quantity: item for item in rented.forecasts}
    seconds = said["run.duration"]
    assert said["run.cost"].low == pytest.approx(seconds.low / 1000)
    assert said["run.cost"].high == pytest.approx(seconds.high / 1000)
    assert rented.is_rented and said["run.energy"].provenance == "derived"
    read = price_run(config, replace(PACE, power_w=100.0), machine=machine, site=site)
    energy = next(item for item in read.forecasts if item.quantity == "run.energy")
    assert energy.value == pytest.approx(100 * PACE.seconds(config))
    assert "power measured" in energy.source
    # Afterwards what cannot be measured scales with the measured time.
    derived = {item.quantity: item.value for item in rented.derived(2 * seconds.value)}
    assert derived["run.energy"] == pytest.approx(2 * said["run.energy"].value)


def test_the_interval_is_as_wide_as_earlier_errors(config):
    site, machine = catalog.site("world-average"), catalog.accelerator("H100-SXM5-80GB")

    def width(errors):
        past = [
            Check(
                Forecast.about(
                    "run.duration", 10.0, relative=0.1, provenance="derived", source="x"
                ),
                Measurement(quantity="run.duration", value=10.0 * (1 + error)),
            )
            for error in errors
        ]
        found = price_run(config, PACE, machine=machine, site=site, past=past).forecasts[0]
        return found.high / found.value - 1

    assert 0.05 < width([]) < 0.2
    assert width([0.01] * 50) < 0.02
    # Eight of ten lie inside, and one wild one in ten does not widen it.
    assert width([*[0.02] * 11, 5.0] * 5) < 0.03
    assert width([*[0.02] * 5, *[0.5] * 5] * 5) == pytest.approx(0.5, rel=0.05)


def test_counters_of_energy_are_summed_over_their_end(tmp_path):
    def zone(name, words, microjoules):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "name").write_text(words + "\n")
        (folder / "max_energy_range_uj").write_text("1000000000")
        (folder / "energy_uj").write_text(str(microjoules))

    assert EnergyMeter("cpu", powercap=tmp_path).joules() is None
    zone("intel-rapl:0", "package-0", 999_000_000)
    zone("intel-rapl:0:0", "core", 5)
    zone("intel-rapl:0:1", "dram", 10_000_000)
    meter = EnergyMeter("cpu", powercap=tmp_path)
    assert meter.joules() == 0
    zone("intel-rapl:0", "package-0", 2_000_000)
    zone("intel-rapl:0:0", "core", 900_000_000)
    zone("intel-rapl:0:1", "dram", 12_000_000)
    assert meter.joules() == pytest.approx(3 + 2)
    assert meter.joules() == pytest.approx(5)


def test_time_goes_on_counting_after_a_kill(config, source, tmp_path):
    class StopError(Exception):
        pass

    def stop(now):
        if now.step == 9:
            raise StopError

    with pytest.raises(StopError):
        train(config, source, tmp_path / "run", on_step=stop)
    seen = []
    result = train(
        config, source, tmp_path / "run", on_step=lambda now: seen.append(now.duration_s)
    )
    first = next(iter(seen))
    assert result.duration_s > seen[-1] > first > 0
    assert result.energy_j is None or result.energy_j > 0


@pytest.mark.slow
def test_a_price_comes_before_the_run_and_into_the_ledger_after_it(
    config, data, tmp_path, capsys, monkeypatch
):
    from steelyard import config as configs

    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    recipe, out = tmp_path / "recipe.json", tmp_path / "run"
    shape = replace(config.architecture, vocab_size=300)
    configs.dump(replace(config, architecture=shape, steps=60, usd_per_hour=1.0), recipe)
    cli.run(recipe, data=data, out=out, price=True)
    assert "run.cost" in capsys.readouterr().out
    assert not list(out.glob("step-*"))
    cli.run(recipe, data=data, out=out)
    assert "Price tag and measured" in capsys.readouterr().out
    store = RunStore()
    [record] = store.list()
    assert {item.quantity for item in record.forecasts} >= {"run.duration", "run.cost"}
    kept = {item.forecast.quantity for _, item in Ledger(store).checks(FORECASTER)}
    assert kept == {"run.duration", "run.cost"}
