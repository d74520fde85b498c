"""The price tag of a training run: made before it, kept in its folder, checked after it."""

from dataclasses import replace
from pathlib import Path

from steelyard import catalog, files
from steelyard import config as configs
from steelyard.catalog.records import WORLD_AVERAGE
from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cost import model_flops_per_token
from steelyard.errors import SteelyardError, StoreError
from steelyard.quantity import Check, Forecast, Measurement, check
from steelyard.runs.stages import Stages
from steelyard.train.config import TrainConfig
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.pace import RunPace, choose_compile, time_few_steps
from steelyard.train.price import FORECASTER, RunPrice, price_run
from steelyard.train.result import RESULT_FILE, EstimatorResult, OnStep, TrainResult
from steelyard.units import pretty, pretty_duration

__all__ = ["checks_of", "keep_run", "kept_price", "price_words", "priced"]

_WORTH_FLOPS = 2e12
"""Model FLOPs of a small model's run of half a minute to a minute on two cores. Timing a few steps
takes up to a quarter of that, so smaller runs have a price only when asked for it."""


def priced(
    config: TrainConfig, data: Path, out: Path, *, asked: bool
) -> tuple[TrainConfig, RunPrice | None]:
    """Return the price tag of a run, made now where its folder has none yet.

    Where the recipe leaves it open whether to compile, both are timed.

    Args:
        config: the run.
        data: folder of token shards.
        out: folder of the run.
        asked: whether the user asked; otherwise runs that are short or have begun have none.

    Returns:
        The run with all choices made, and the price; None where there is none.
    """
    # A folder keeps the choice that its first call made: another one would be another run.
    begun = out / "config.json"
    if config.compile == "auto" and begun.exists():
        config = replace(config, compile=files.read_json(begun)["config"]["compile"])
    kept = kept_price(out)
    if kept is not None and config.compile != "auto":
        return config, kept
    has_begun = (out.is_dir() and any(out.glob("step-*"))) or (out / RESULT_FILE).exists()
    is_open = config.compile == "auto"
    if not asked and not is_open and (has_begun or _flops(config) < _WORTH_FLOPS):
        return config, None
    config, pace = _timed(config, data, out.parent)
    machine = _machine(config.device)
    site = catalog.site(WORLD_AVERAGE)
    found = price_run(config, pace, machine=machine, site=site, past=_past())
    # What a run that is under way would take from its beginning is no forecast of it any more.
    if not has_begun:
        files.write_json(_place(out), configs.to_plain(found))
    return config, found


def _flops(config: TrainConfig) -> float:
    """Return the model FLOPs of a run."""
    per_token = model_flops_per_token(config.architecture, config.sequence_length)
    return config.steps * config.tokens_per_step * per_token


def _timed(config: TrainConfig, data: Path, place: Path) -> tuple[TrainConfig, RunPace]:
    """Time a few steps in a process of their own, with and without compiling where that is open."""
    from steelyard.train.worker import TrainProcess

    with TrainProcess() as process:
        process.start()

        def train(short: TrainConfig, folder: Path, on_step: OnStep) -> TrainResult:
            return process.train(short, data, folder, on_step=on_step)

        if config.compile == "auto":
            return choose_compile(config, place, train)
        return config, time_few_steps(config, place, train)


def _place(out: Path) -> Path:
    """Return where the price of a run is kept."""
    return out / "price.json"


def kept_price(out: Path) -> RunPrice | None:
    """Return the price that was made before a run began, None where there was none."""
    path = _place(out)
    return configs.load(path, RunPrice) if path.exists() else None


def _machine(device: str) -> catalog.Accelerator:
    """Return the record of this machine; one that says nothing where it was not calibrated."""
    try:
        return catalog.accelerator(THIS_MACHINE)
    except SteelyardError:
        return catalog.Accelerator(
            name=THIS_MACHINE,
            vendor="",
            kind="gpu" if device.startswith("cuda") else "cpu",
            year=0,
            peak_flops_per_s={},
            memory_bytes=0.0,
            memory_bytes_per_s=0.0,
            confidence="measured",
        )


def _past() -> list[Check]:
    """Return how earlier price tags came out here."""
    from steelyard.runs.ledger import Ledger
    from steelyard.runs.store import RunStore

    try:
        checks = Ledger(RunStore.existing()).checks(FORECASTER)
    except StoreError:
        return []
    return [item for _, item in checks if item.forecast.quantity == "run.duration"]


def price_words(price: RunPrice) -> str:
    """Say a price in one line."""
    parts = [_words(item) for item in price.forecasts if item.quantity != "run.carbon"]
    return "takes about " + ", ".join(parts)


def _words(item: Forecast) -> str:
    """Say a forecast with its interval, and whether it is no better than assumed."""
    if item.unit == "s":
        value, low, high = map(pretty_duration, (item.value, item.low, item.high))
    else:
        value, low, high = (pretty(part, item.unit) for part in (item.value, item.low, item.high))
    marked = "" if item.quantity == "run.duration" else f", {item.provenance}"
    return f"{value} ({low} to {high}{marked})"


def checks_of(price: RunPrice | None, result: EstimatorResult) -> list[Check]:
    """Return the forecasts of a price beside what was measured."""
    if price is None:
        return []
    return check(list(price.forecasts), [*result.measurements(), *_spent(price, result)])


def _spent(price: RunPrice, result: EstimatorResult) -> list[Measurement]:
    """Return the money of a machine that is paid by the hour; nothing for others."""
    if not (price.is_rented and price.usd_per_hour and result.duration_s):
        return []
    usd = price.usd_per_hour * result.duration_s / 3600
    return [Measurement(quantity="run.cost", value=usd)]


def keep_run(
    config: EstimatorConfig,
    result: EstimatorResult,
    out: Path,
    *,
    model: Path | None = None,
    price: RunPrice | None = None,
) -> str:
    """Write a finished run and what became of its price into the store, once.

    Args:
        config: the run.
        result: what it measured.
        out: folder of the run.
        model: folder of its final weights; None for a run that leaves none.
        price: its price tag, None where it has none.

    Returns:
        Id of the run.
    """
    from steelyard.runs.ledger import Ledger
    from steelyard.runs.store import RunStore

    def work() -> str:
        store, plain = RunStore(), configs.to_plain(config)
        with store.create("train", plain, seed=config.seed, name=out.resolve().name) as run:
            for said in price.forecasts if price else ():
                run.forecast(said)
            run.measure(*result.measurements(), *(_spent(price, result) if price else ()))
            if model is not None:
                run.artifact("model", model)
        if checks := checks_of(price, result):
            Ledger(store).record(FORECASTER, checks, run.id)
        return run.id

    # A stage of its own: the same line again, after the end, keeps no second run.
    return Stages(out / "stages").run("keep", result.to_plain(), str, work)
