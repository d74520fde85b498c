"""The main job.

Calibrate, read, climb the ladder, forecast, train, check, plan, serve, check, report.

Every stage's result is a file under `OUT/stages`; training runs keep checkpoints of their own. A
killed quickstart goes on where it stopped when it is run again with the same options.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.catalog import (
    Calibration,
    accelerator,
    cluster,
    load_calibration,
    site_of,
    store_calibration,
)
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.config import convert, to_plain
from steelyard.cost import Machine
from steelyard.laws import Fit
from steelyard.plan import Plan
from steelyard.quantity import Check, Forecast, check
from steelyard.train.lock import exclusive
from steelyard.weigh.budget import plan_budget
from steelyard.weigh.forecast import RungPoint, fit_laws, training_forecasts
from steelyard.weigh.ladder import VOCAB_SIZE, Ladder, design, probe_shapes
from steelyard.weigh.progress import StageBar, silent_bar
from steelyard.weigh.serving import ServingOutcome, weigh_serving
from steelyard.weigh.settings import QuickstartConfig
from steelyard.weigh.stages import Stages
from steelyard.weigh.table import write_table
from steelyard.weigh.training import climb, model_directory, probe_step_times, train_target

__all__ = ["Quickstart", "TextFacts", "run_quickstart"]

_FRESH_S = 7 * 86400.0
_BYTES_PER_MINUTE = 3_000_000
_HELDOUT_FRACTION = 0.05
_SERVING_SHARE = 0.07


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFacts:
    """What the text stage made.

    Attributes:
        directory: of the token shards.
        documents: kept.
        duplicate_fraction: of clean documents that were dropped as duplicates.
        bytes: of text read.
        tokens: to train on.
        bytes_per_token: UTF-8 bytes an average token stands for.
    """

    directory: str
    documents: int
    duplicate_fraction: float
    bytes: int
    tokens: int
    bytes_per_token: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Quickstart:
    """Everything a finished quickstart found.

    Attributes:
        config: what the user chose.
        calibration: of this machine.
        text: what was read.
        ladder: what was trained.
        points: the ladder's cooled-down runs.
        laws: fitted to them, the one with the smaller residuals first.
        checks: every forecast beside its measurement.
        losses: training losses of the larger model by step.
        plan: for the asked budget and cluster.
        cluster: the plan's.
        site: the plan's, with its price of energy and carbon intensity.
        serving: what was said of the trace and what came.
        run_id: of the larger run in the run store.
        duration_s: wall time of the stages of this call.
    """

    config: QuickstartConfig
    calibration: Calibration
    text: TextFacts
    ladder: Ladder
    points: list[RungPoint]
    laws: list[Fit]
    checks: list[Check]
    losses: list[float]
    plan: Plan
    cluster: Cluster
    site: Site
    serving: ServingOutcome
    run_id: str
    duration_s: float


def run_quickstart(config: QuickstartConfig, *, bar: StageBar = silent_bar) -> Quickstart:
    """Run the main job, or go on with one that was stopped.

    Args:
        config: the user's choices.
        bar: opens the progress bar of a stage.

    Returns:
        Everything that was found; `weigh.report.build` draws it.

    Raises:
        ConfigError: an option is out of range.
        CatalogError: the cluster is unknown.
        DataError: the text cannot be used, or a stored file is corrupted.
        InfeasibleError: the time is too short, or nothing fits the budget.
        CapacityError: the disk is full.
        StoreError: another quickstart works in the same folder.
    """
    began_s = time.monotonic()
    where, chip, place = _target_of_plan(config)
    with exclusive(config.out, wait_s=1.0):
        stages = Stages(config.out / "stages")
        calibration = _calibrate(stages, config, bar)
        machine = Machine.from_calibration(calibration)
        text, shards = _read_text(config, bar)
        ladder = _design_ladder(stages, config, shards, text, bar)
        points = _climb(stages, ladder, shards, config, bar)
        laws = fit_laws(points, seed=config.seed)
        forecasts = _forecast(stages, laws, points, ladder, machine, config)
        with bar(f"larger model {ladder.target[0]}x{ladder.target[1]}") as advance:
            result = train_target(ladder, shards, config, advance)
        plan = plan_budget(laws[0], points, config.budget_flops, where=(where, chip, place))
        serving = _serve(stages, config, bar)
        checks = check(forecasts, result.measurements()) + check(
            serving.forecasts, serving.measurements
        )
        run_id = _keep(stages, config, ladder, checks)
    return Quickstart(
        config=config,
        calibration=calibration,
        text=text,
        ladder=ladder,
        points=points,
        laws=laws,
        checks=checks,
        losses=result.losses,
        plan=plan,
        cluster=where,
        site=place,
        serving=serving,
        run_id=run_id,
        duration_s=time.monotonic() - began_s,
    )


def _target_of_plan(config: QuickstartConfig) -> tuple[Cluster, Accelerator, Site]:
    """Look up where the plan is for, before any work is done."""
    where = cluster(config.cluster)
    return where, accelerator(where.accelerator), site_of(where)


def _calibrate(stages: Stages, config: QuickstartConfig, bar: StageBar) -> Calibration:
    """Measure this machine, or take a measurement of the last week with as many threads."""
    from steelyard.catalog.calibrate import calibrate

    def work() -> Calibration:
        stored = load_calibration()
        fresh = (
            stored is not None
            and time.time() - stored.time_s < _FRESH_S
            and config.threads in (0, stored.num_threads)
        )
        if stored is not None and fresh:
            return stored
        with bar("calibrate") as advance:
            found = calibrate(
                quick=True,
                num_threads=config.threads,
                progress=lambda text, fraction: advance(fraction, text),
            )
        store_calibration(found)
        return found

    return convert(stages.run("calibrate", {"threads": config.threads}, work), Calibration)


def _read_text(config: QuickstartConfig, bar: StageBar) -> tuple[TextFacts, Any]:
    """Prepare the token shards; the data room keeps its own finished stages."""
    from steelyard.data.shards import TokenShards
    from steelyard.data.text import default_sources, prepare

    out = config.out / "data"
    sources = list(config.text) or default_sources()
    with bar("text") as advance:
        manifest = prepare(
            sources,
            out,
            vocab_size=VOCAB_SIZE,
            heldout_fraction=_HELDOUT_FRACTION,
            seed=config.seed,
            max_bytes=int(_BYTES_PER_MINUTE * config.minutes),
            progress=lambda stage, fraction: advance(fraction, stage),
        )
    shards = TokenShards(out)
    return _text_facts(out, manifest, shards), shards


def _text_facts(out: Path, manifest: Any, shards: Any) -> TextFacts:
    """Keep of the manifest what the report shows."""
    return TextFacts(
        directory=str(out),
        documents=manifest.documents,
        duplicate_fraction=manifest.duplicate_fraction,
        bytes=manifest.text_bytes,
        tokens=shards.num_tokens,
        bytes_per_token=shards.bytes_per_token,
    )


def _design_ladder(
    stages: Stages, config: QuickstartConfig, shards: Any, text: TextFacts, bar: StageBar
) -> Ladder:
    """Probe step times and choose the ladder; stored, so that a resumed job climbs the same one."""

    def work() -> Ladder:
        shapes = probe_shapes(config.minutes)
        with bar("probe") as advance:
            times = probe_step_times(shapes, shards, config, advance)
        return design(
            dict(zip(shapes, times, strict=True)),
            budget_s=60 * config.minutes,
            max_tokens=text.tokens,
        )

    return convert(
        stages.run("ladder", {"config": _inputs(config), "tokens": text.tokens}, work), Ladder
    )


def _climb(
    stages: Stages, ladder: Ladder, shards: Any, config: QuickstartConfig, bar: StageBar
) -> list[RungPoint]:
    """Train the rungs."""

    def work() -> list[RungPoint]:
        with bar("ladder") as advance:
            return climb(ladder, shards, config, advance)

    points = convert(
        stages.run("climb", {"ladder": ladder, "seed": config.seed}, work), list[RungPoint]
    )
    write_table(points, config.out / "ladder.csv", f"{VOCAB_SIZE} tokens of {config.out.name}")
    return points


def _forecast(
    stages: Stages,
    laws: list[Fit],
    points: list[RungPoint],
    ladder: Ladder,
    machine: Machine,
    config: QuickstartConfig,
) -> list[Forecast]:
    """Forecast the larger run; written down before it starts."""

    def work() -> list[Forecast]:
        return training_forecasts(
            laws, points, target=ladder.target, steps=ladder.target_steps, machine=machine
        )

    return convert(
        stages.run("forecast", {"points": points, "ladder": ladder, "seed": config.seed}, work),
        list[Forecast],
    )


def _serve(stages: Stages, config: QuickstartConfig, bar: StageBar) -> ServingOutcome:
    """Forecast and replay a trace on the larger model."""
    seconds = 60 * config.minutes * _SERVING_SHARE

    def work() -> ServingOutcome:
        with bar("serve") as advance:
            return weigh_serving(
                model_directory(config),
                seconds=seconds,
                seed=config.seed,
                threads=config.threads,
                advance=advance,
            )

    return convert(stages.run("serve", {"config": _inputs(config)}, work), ServingOutcome)


def _keep(stages: Stages, config: QuickstartConfig, ladder: Ladder, checks: list[Check]) -> str:
    """Write the run and its checks into the run store and the ledger, once."""
    from steelyard.runs import Ledger, RunStore

    def work() -> str:
        store = RunStore()
        recipe = {"config": to_plain(config), "ladder": to_plain(ladder)}
        with store.create("quickstart", recipe, seed=config.seed, name=config.out.name) as run:
            for item in checks:
                run.forecast(item.forecast)
                run.measure(item.measurement)
            run.artifact("model", model_directory(config))
        ledger = Ledger(store)
        for forecaster, kinds in _forecasters(checks).items():
            ledger.record(forecaster, kinds, run.id)
        return run.id

    return str(stages.run("keep", {"checks": checks}, work))


def _forecasters(checks: list[Check]) -> dict[str, list[Check]]:
    """Sort checks by who forecast them."""
    owners = {"eval": "laws.fit", "train": "cost.training_step", "serve": "sim.serving"}
    sorted_checks: dict[str, list[Check]] = {}
    for item in checks:
        name = item.forecast.quantity
        owner = (
            "cost.eager_training_memory"
            if name == "train.peak_memory"
            else owners[name.split(".")[0]]
        )
        sorted_checks.setdefault(owner, []).append(item)
    return sorted_checks


def _inputs(config: QuickstartConfig) -> dict[str, Any]:
    """Return the choices that change what is trained; budget and cluster only change the plan."""
    plain = to_plain(config)
    return {name: plain[name] for name in ("text", "minutes", "seed", "threads")}
