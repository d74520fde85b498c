"""Bytes, time of a build and time of a query of an index, before it is built."""

from collections.abc import Mapping
from dataclasses import dataclass

from steelyard.catalog.search_rates import SearchRates
from steelyard.cost.vector_search.work import IndexShape, build_work, query_work
from steelyard.errors import CalibrationError
from steelyard.quantity import Forecast

__all__ = ["IndexForecast", "predict", "stage_seconds"]

_SOURCE = "steelyard retrieve calibrate"
_BYTES_RELATIVE = 0.02
"""Half-width of the bytes: the last blocks of cells are filled by chance."""
_ORDER = ("call", "cell distances", "lookup tables", "scan", "selection", "comparing again")
_STAGES = {
    "centers, near": "cell distances",
    "centers, far": "cell distances",
    "cells": "scan",
    "tables": "lookup tables",
    "scan, near": "scan",
    "scan, far": "scan",
    "rows": "scan",
    "inserts": "selection",
    "again, near": "comparing again",
    "again, far": "comparing again",
    "call": "call",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexForecast:
    """What an index will take.

    Attributes:
        memory: bytes in memory.
        build: seconds of training and adding, with the threads of the calibration.
        query: seconds of one query on one thread.
        stages_s: seconds of a query by stage; they add up to its value.
    """

    memory: Forecast
    build: Forecast
    query: Forecast
    stages_s: Mapping[str, float]


def predict(shape: IndexShape, nprobe: int, rates: SearchRates, *, k: int = 10) -> IndexForecast:
    """Forecast an index on the machine that was calibrated.

    Args:
        shape: kind and sizes of the index.
        nprobe: cells that a query looks into.
        rates: what `steelyard retrieve calibrate` measured; `catalog.search_rates` reads them.
        k: neighbours of a query.

    Returns:
        The forecasts with 80 % intervals.

    Raises:
        ConfigError: nprobe or k is below 1.
        CalibrationError: this kind of index was not measured.
    """
    stages_s = stage_seconds(shape, nprobe, rates, k=k)
    build_s = sum(rates.build_s.get(part, 0.0) * n for part, n in build_work(shape).items())
    return IndexForecast(
        memory=Forecast.about(
            "retrieve.memory",
            shape.memory_bytes,
            relative=_BYTES_RELATIVE,
            provenance="derived",
            source="sizes of what the index holds",
        ),
        build=Forecast.about(
            "retrieve.build_time",
            build_s,
            relative=rates.build_relative,
            provenance="fitted",
            source=_SOURCE,
        ),
        query=Forecast.about(
            "retrieve.query_time",
            sum(stages_s.values()),
            relative=rates.query_relative[shape.kind],
            provenance="fitted",
            source=_SOURCE,
        ),
        stages_s=stages_s,
    )


def stage_seconds(
    shape: IndexShape, nprobe: int, rates: SearchRates, *, k: int = 10
) -> dict[str, float]:
    """Return the seconds of a query by stage.

    Args:
        shape: kind and sizes of the index.
        nprobe: cells that a query looks into.
        rates: what was measured.
        k: neighbours of a query.

    Returns:
        Seconds by stage, in the order in which a query goes through them.

    Raises:
        ConfigError: nprobe or k is below 1.
        CalibrationError: this kind of index was not measured.
    """
    known = rates.query_s.get(shape.kind)
    if known is None:
        raise CalibrationError(
            f"no rates of {shape.kind} indexes", hint="run `steelyard retrieve calibrate`"
        )
    found: dict[str, float] = dict.fromkeys(_ORDER, 0.0)
    for part, count in query_work(shape, nprobe, k).items():
        found[_STAGES[part]] += known.get(part, 0.0) * count
    return found
