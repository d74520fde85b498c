"""Plans of retrievers in the run store, and what retrievers that were built take in the ledger."""

from typing import TYPE_CHECKING, Any

from steelyard.cli.retrieve.forecasting import past_checks
from steelyard.errors import ConfigError
from steelyard.quantity import Check
from steelyard.retrieve.forecasts import forecast_of
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.plan.retrieve.retriever import RetrieverDesign
    from steelyard.plan.retrieve.retriever_cost import RetrieverLoad
    from steelyard.retrieve.corpus import CorpusIndex
    from steelyard.retrieve.forecasts import BuildFigures

__all__ = ["PLAN_FORECASTER", "check_retriever", "keep_retriever", "told_checks"]

PLAN_FORECASTER = "plan.retriever"
"""Name of the forecasts of these plans in the ledger."""
_DOCUMENTS_OFF, _PARAMETERS_OFF = 0.1, 0.5
"""How far what was built may be from what was planned, as a share of it, to be compared with it."""


def keep_retriever(best: "RetrieverDesign", load: "RetrieverLoad") -> str:
    """Write a plan with its forecasts into the user's run store.

    Args:
        best: the design that was chosen.
        load: what it is to carry.

    Returns:
        Id of its run.
    """
    from steelyard.runs.store import RunStore

    choice = {
        "retriever": best.index.kind,
        "documents": load.documents,
        "teacher_parameters": best.teacher.parameters,
        "student_parameters": best.student.parameters,
        "index": best.index.name,
        "cores": best.cores,
    }
    said = {
        "retrieve.search_p50": best.service_s,
        "retrieve.search_p95": best.alone_p95_s,
        "retrieve.memory": best.index.memory_bytes,
    }
    past = past_checks(PLAN_FORECASTER)
    name = f"retriever of {load.documents:,} documents"
    with RunStore().create("plan", choice, seed=0, name=name) as run:
        for quantity, value in said.items():
            source = "towers and indexes timed on this machine"
            run.forecast(forecast_of(quantity, value, past, source=source))
        return run.id


def check_retriever(
    plan: str, index: "CorpusIndex", measured: "BuildFigures", parameters: int
) -> list[Check]:
    """Write what a planned retriever takes beside its forecasts, and into the ledger.

    Args:
        plan: id of the plan's run, or a unique beginning of it.
        index: index of the documents.
        measured: its searches, asked by the tower that serves.
        parameters: of that tower, without embeddings.

    Returns:
        The forecasts that were measured, with their measurements.

    Raises:
        ConfigError: the run is no plan of a retriever, or one of other documents, another index or
            another tower.
        StoreError: there is no such run.
    """
    from steelyard.runs.ledger import Ledger
    from steelyard.runs.store import RunStore

    store = RunStore.existing()
    record = store.get(plan)
    if "retriever" not in record.recipe:
        raise ConfigError(
            f"--plan {plan} names a run of kind {record.kind} that plans no retriever",
            hint="name one that `steelyard plan retriever --keep` made",
        )
    _require_planned(record.recipe, index, parameters)
    with store.resume(record.id) as run:
        for item in measured.measurements():
            if item.quantity in {said.quantity for said in record.forecasts}:
                run.measure(item)
    checks = store.check(record.id)
    Ledger(store).record(PLAN_FORECASTER, checks, record.id)
    return checks


def _require_planned(planned: dict[str, Any], index: "CorpusIndex", parameters: int) -> None:
    """Refuse what is not what was planned."""
    kind, documents = planned["retriever"], planned["documents"]
    shape = index.store.shape
    if shape.words or shape.vectors != kind:
        raise ConfigError(
            f"the plan is for an index of {kind} vectors, {index.folder} is one of {shape.name}",
            hint=f"build it with --kind {kind}",
        )
    if abs(len(index) - documents) > _DOCUMENTS_OFF * documents:
        raise ConfigError(
            f"the plan is for {documents:,} documents, {index.folder} holds {len(index):,}",
            hint=f"plan again with --docs {len(index)}",
        )
    wanted = planned["student_parameters"]
    if abs(parameters - wanted) > _PARAMETERS_OFF * wanted:
        raise ConfigError(
            f"the plan is for a tower of queries of {wanted:,} parameters, this one has "
            f"{parameters:,}",
            hint="give the tower that was planned by --encoder, or plan again with its size",
        )


def told_checks(checks: list[Check]) -> list[str]:
    """Return checks as lines: what was measured, and what was planned."""
    lines = []
    for item in checks:
        said, unit = item.forecast, "byte" if item.forecast.quantity.endswith("memory") else "s"
        low, value, high = (pretty(end, unit) for end in (said.low, said.value, said.high))
        came = pretty(item.measurement.value, unit)
        lines.append(f"{said.quantity}: {came}, planned {value} (80 %: {low} to {high})")
    return lines
