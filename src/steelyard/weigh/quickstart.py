"""The main job: calibrate, read, climb the ladder, forecast, train, plan, serve, check, report.

Every stage's result is a file under `OUT/stages`; training runs keep checkpoints of their own. A
killed quickstart goes on where it stopped when it is run again with the same options.
"""

import time
from dataclasses import dataclass, replace

from steelyard.catalog import (
    Calibration,
    accelerator,
    cluster,
    load_calibration,
    site_of,
    store_calibration,
)
from steelyard.catalog.calibrate import calibrate
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.catalog.quiet import MOST_LOST
from steelyard.config import to_plain
from steelyard.cost import Machine
from steelyard.data.manifest import Manifest
from steelyard.data.shards import TokenShards
from steelyard.data.text import default_sources, prepare
from steelyard.errors import FitError
from steelyard.files import exclusive
from steelyard.laws.decisions.allocate import allocate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.registry import published
from steelyard.plan import Plan, plan_training
from steelyard.quantity import Check, Forecast, Measurement, check
from steelyard.runs import Ledger, RunStore
from steelyard.runs.progress import Advance, StageBar, silent_bar
from steelyard.runs.stages import Stages
from steelyard.train.result import TrainResult
from steelyard.weigh.forecast import RungPoint, fit_laws, loss_forecasts, training_forecasts
from steelyard.weigh.ladder import (
    BATCH_SIZE,
    SEQUENCE_LENGTH,
    VOCAB_SIZE,
    Ladder,
    design,
    parameters,
    probe_shapes,
)
from steelyard.weigh.pace import Pace, joined
from steelyard.weigh.serving import ServingOutcome, weigh_serving
from steelyard.weigh.settings import QuickstartConfig, target_model
from steelyard.weigh.training import (
    climb,
    probe_step_times,
    train_target,
    write_table,
)

__all__ = ["Quickstart", "run_quickstart"]

_FRESH_S = 7 * 86400.0
_BYTES_PER_MINUTE = 3_000_000
_HELDOUT_FRACTION = 0.05
_SERVING_SHARE = 0.07
_PATIENCE_SHARE = 0.1
_MAX_EXTRAPOLATION = 100.0
"""How many times the largest run's FLOPs the ladder's own law is trusted to carry: two decades."""
_PUBLISHED = "besiroglu2024"


@dataclass(frozen=True, kw_only=True, slots=True)
class Quickstart:
    """Everything a finished quickstart found.

    Attributes:
        config: what the user chose.
        calibration: calibration of this machine.
        text: what was read, cut and packed.
        ladder: what was trained.
        points: the ladder's cooled-down runs.
        laws: laws fitted to them, the one with the smaller residuals first.
        checks: every forecast beside its measurement.
        losses: training losses of the larger model by step.
        plan: plan for the asked budget and cluster.
        cluster: cluster of the plan.
        site: site of the plan, with its price of energy and carbon intensity.
        serving: what was forecast for the trace and what came.
        run_id: id of the larger run in the run store.
        duration_s: wall time of the stages of this call.
    """

    config: QuickstartConfig
    calibration: Calibration
    text: Manifest
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
    # Looked up before any work is done, so that an unknown name is refused at once.
    where = cluster(config.cluster)
    chip, place = accelerator(where.accelerator), site_of(where)
    with exclusive(config.out, wait_s=1.0):
        stages = Stages(config.out / "stages", bar)
        calibration = _calibrate(stages, config)
        machine = Machine.from_calibration(calibration)
        shards = _read_text(config, bar)
        ladder = _design_ladder(stages, config, shards)
        points = _climb(stages, ladder, shards, config)
        laws = fit_laws(points, seed=config.seed)
        # Stored before the larger run begins, so that a forecast can never have seen its result.
        forecasts = _forecast(stages, points, ladder, machine, config)
        alone = _forms_alone(stages, points, ladder)
        result, pace = _train_target(stages, ladder, shards, config)
        plan = _plan(laws[0], points, config.budget_flops, where, chip, place)
        paces = {point.shape: point.pace for point in points}
        serving = _serve(stages, config, joined([*paces.values(), pace]))
        checks = check(forecasts, _measurements(result, pace)) + check(
            serving.forecasts, serving.measurements
        )
        run_id = _keep(stages, config, ladder, checks, alone, time.monotonic() - began_s)
    return Quickstart(
        config=config,
        calibration=calibration,
        text=shards.manifest,
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


def _calibrate(stages: Stages, config: QuickstartConfig) -> Calibration:
    """Measure this machine, or take a measurement of the last week with as many threads."""

    def work() -> Calibration:
        stored = load_calibration()
        if (
            stored is not None
            and time.time() - stored.time_s < _FRESH_S
            and config.threads in (0, stored.num_threads)
        ):
            return stored
        with stages.bar("calibrate") as advance:
            found = calibrate(
                quick=True,
                num_threads=config.threads,
                progress=lambda text, fraction: advance(fraction, text),
                patience_s=_PATIENCE_SHARE * 60 * config.minutes,
                force=True,
            )
        # It is the whole calibration that measures the engine's kernels: what that found stays.
        found = replace(found, engine=stored.engine if stored else None)
        # The ladder corrects what other work spoiled here; a later plan would not.
        if found.contention <= MOST_LOST:
            store_calibration(found)
        return found

    return stages.run("calibrate", {"threads": config.threads}, Calibration, work)


def _read_text(config: QuickstartConfig, bar: StageBar) -> TokenShards:
    """Prepare the token shards; the data room keeps its own finished stages."""
    out = config.out / "data"
    sources = list(config.text) or default_sources()
    with bar("text") as advance:
        prepare(
            sources,
            out,
            vocab_size=VOCAB_SIZE,
            heldout_fraction=_HELDOUT_FRACTION,
            seed=config.seed,
            max_bytes=int(_BYTES_PER_MINUTE * config.minutes),
            progress=lambda stage, fraction: advance(fraction, stage),
        )
    return TokenShards(out)


def _design_ladder(stages: Stages, config: QuickstartConfig, shards: TokenShards) -> Ladder:
    """Probe step times and choose the ladder; stored, so that a resumed job climbs the same one."""

    def work(advance: Advance) -> Ladder:
        return design(
            probe_step_times(probe_shapes(config.minutes), shards, config, advance),
            budget_s=60 * config.minutes,
            max_tokens=shards.num_tokens,
        )

    inputs = {"config": _inputs(config), "tokens": shards.num_tokens}
    return stages.run_shown("ladder", inputs, Ladder, work, title="probe")


def _climb(
    stages: Stages, ladder: Ladder, shards: TokenShards, config: QuickstartConfig
) -> list[RungPoint]:
    """Train the rungs."""
    points = stages.run_shown(
        "climb",
        {"ladder": ladder, "seed": config.seed},
        list[RungPoint],
        lambda advance: climb(ladder, shards, config, advance),
        title="ladder",
    )
    write_table(points, config.out / "ladder.csv", f"{VOCAB_SIZE} tokens of {config.out.name}")
    return points


def _forecast(
    stages: Stages,
    points: list[RungPoint],
    ladder: Ladder,
    machine: Machine,
    config: QuickstartConfig,
) -> list[Forecast]:
    """Forecast the larger run; written down before it starts."""
    return stages.run(
        "forecast",
        {"points": points, "ladder": ladder, "seed": config.seed},
        list[Forecast],
        lambda: training_forecasts(
            points, target=ladder.target, steps=ladder.target_steps, machine=machine
        ),
    )


def _forms_alone(stages: Stages, points: list[RungPoint], ladder: Ladder) -> dict[str, Forecast]:
    """Forecast the larger run's loss by each form alone, for the ledger."""

    def work() -> dict[str, Forecast]:
        tokens = ladder.target_steps * BATCH_SIZE * SEQUENCE_LENGTH
        said = loss_forecasts(points, float(parameters(ladder.target)), float(tokens))
        return {name: item for name, item in said.items() if name}

    return stages.run("forms", {"points": points, "ladder": ladder}, dict[str, Forecast], work)


def _train_target(
    stages: Stages, ladder: Ladder, shards: TokenShards, config: QuickstartConfig
) -> tuple[TrainResult, Pace]:
    """Train the larger model; the pace of the machine meanwhile is kept beside its result."""
    with stages.bar(f"larger model {ladder.target[0]}x{ladder.target[1]}") as advance:
        result, pace = train_target(ladder, shards, config, advance)
    inputs = {"ladder": ladder, "seed": config.seed}
    return result, stages.run("target", inputs, Pace, lambda: pace)


def _measurements(result: TrainResult, pace: Pace) -> list[Measurement]:
    """Return what was measured of the larger run, its times with the pace they were taken at."""
    paces = {"train.step_time": pace.median_s, "train.total_time": pace.mean_s}
    return [replace(item, pace_s=paces.get(item.quantity, 0.0)) for item in result.measurements()]


def _plan(
    law: Fit,
    points: list[RungPoint],
    flops: float,
    where: Cluster,
    chip: Accelerator,
    place: Site,
) -> Plan:
    """Plan the compute-optimal run of a budget on a cluster.

    The ladder's own law speaks near the ladder, a published one far beyond it.
    """
    largest = max(6.0 * point.parameters * point.tokens for point in points)
    # A few runs leave the exponents uncertain, and what an exponent is wrong by grows with every
    # decade beyond the ladder.
    is_near = flops <= _MAX_EXTRAPOLATION * largest
    far = published[_PUBLISHED].fit()
    try:
        allocation = allocate(law if is_near else far, flops)
    except FitError:
        # A ladder whose exponents ended at a bound does not tell what size and tokens are worth.
        allocation = allocate(far, flops)
    return plan_training(allocation, cluster=where, accelerator=chip, site=place)


def _serve(stages: Stages, config: QuickstartConfig, seen: Pace) -> ServingOutcome:
    """Forecast and replay a trace on the larger model."""
    return stages.run_shown(
        "serve",
        {"config": _inputs(config)},
        ServingOutcome,
        lambda advance: weigh_serving(
            target_model(config.out),
            seconds=60 * config.minutes * _SERVING_SHARE,
            seed=config.seed,
            threads=config.threads,
            seen=seen,
            advance=advance,
        ),
        title="serve",
    )


def _keep(
    stages: Stages,
    config: QuickstartConfig,
    ladder: Ladder,
    checks: list[Check],
    alone: dict[str, Forecast],
    duration_s: float,
) -> str:
    """Write the run and its checks into the run store and the ledger, once."""

    def work() -> str:
        store = RunStore()
        recipe = {"config": to_plain(config), "ladder": to_plain(ladder)}
        with store.create("quickstart", recipe, seed=config.seed, name=config.out.name) as run:
            for item in checks:
                run.forecast(item.forecast)
                run.measure(item.measurement)
            run.measure(Measurement(quantity="run.duration", value=duration_s))
            run.artifact("model", target_model(config.out))
        ledger = Ledger(store)
        for forecaster, kinds in _forecasters(checks).items():
            ledger.record(forecaster, kinds, run.id)
        measured = [item.measurement for item in checks if item.forecast.quantity == "eval.loss"]
        for name, said in alone.items():
            # One line per form: whose past was good is known only where all were written down.
            ledger.record(f"laws.{name}", check([said], measured), run.id)
        return run.id

    return stages.run("keep", {"checks": checks}, str, work)


def _forecasters(checks: list[Check]) -> dict[str, list[Check]]:
    """Sort checks by who forecast them."""
    owners = {
        "train.peak_memory": "cost.eager_training_memory",
        "eval": "laws.forecast",
        "train": "cost.training_step",
        "serve": "serve.simulate",
    }
    sorted_checks: dict[str, list[Check]] = {}
    for item in checks:
        name = item.forecast.quantity
        owner = owners.get(name) or owners[name.split(".")[0]]
        sorted_checks.setdefault(owner, []).append(item)
    return sorted_checks


def _inputs(config: QuickstartConfig) -> dict[str, object]:
    """Return the choices that change what is trained; budget and cluster only change the plan."""
    plain = to_plain(config)
    return {name: plain[name] for name in ("text", "minutes", "seed", "threads")}
