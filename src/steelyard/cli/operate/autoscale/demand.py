"""Where a demand comes from: a file, a Prometheus server, or a recipe that generates one."""

import urllib.error
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from steelyard.config import convert, read
from steelyard.errors import ConfigError, DataError
from steelyard.operate.autoscale.book import ForecastBook
from steelyard.operate.autoscale.config import AutoscaleConfig
from steelyard.operate.autoscale.demand import Demand, demand_of_series
from steelyard.operate.series import SeriesSet, from_prometheus, read_series

__all__ = ["book_of", "demand_of", "fetched", "load_recipe"]

_LARGEST_BYTES = 64 << 20
_PATIENCE_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Recipe:
    """A recipe: a file of demand, or a generated one, and the options."""

    demand: str = ""
    column: str = ""
    archetype: str = "diurnal"
    days: float = 14.0
    service: AutoscaleConfig = field(default_factory=AutoscaleConfig)


def fetched(address: str) -> Any:
    """Fetch the answer of a Prometheus range query.

    Args:
        address: http or https address of `/api/v1/query_range` with its query, start, end and step.

    Returns:
        The parsed JSON, at most 64 MiB.

    Raises:
        DataError: nobody answers, or not with JSON.
    """
    # urllib would also open files and FTP: what is meant is a server.
    if not address.startswith(("http://", "https://")):
        raise DataError(f"{address} is no http address")
    try:
        with urllib.request.urlopen(address, timeout=_PATIENCE_S) as answer:
            payload = answer.read(_LARGEST_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise DataError(
            f"cannot fetch {address}: {error}",
            hint="try the address in a browser, or save the answer and give the file",
        ) from error
    if len(payload) > _LARGEST_BYTES:
        raise DataError(f"{address} sent more than 64 MiB", hint="ask for a shorter range")
    try:
        return msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        raise DataError(f"{address} did not answer with JSON: {error}") from error


def demand_of(source: str, column: str = "") -> Demand:
    """Read a demand.

    Args:
        source: file of series, or address of a Prometheus range query.
        column: id of the series; the only one when empty.

    Returns:
        The demand.

    Raises:
        ConfigError: the source has several series and none was named.
        DataError: it cannot be read.
        TraceError: its content is refused.
    """
    is_address = source.startswith(("http://", "https://"))
    series = from_prometheus(fetched(source), source) if is_address else read_series(source)
    return _of_series(series, column, source)


def _of_series(series: SeriesSet, column: str, source: str) -> Demand:
    """Take one series as demand."""
    if not column and len(series) > 1:
        raise ConfigError(
            f"{source} holds {len(series)} series, and --column names none of them",
            hint=f"there are: {', '.join(series.ids[:8])}",
        )
    index = series.index(column) if column else 0
    return demand_of_series(series, index, source=f"{source}: {series.ids[index]}")


def book_of(source: str, column: str, *, store: str, no_keep: bool) -> ForecastBook | None:
    """Return the book of what is forecast of a demand that goes on, None to keep nothing.

    Args:
        source: address or file of the demand.
        column: id of the series in it.
        store: folder of the run store; the user's own when empty.
        no_keep: keep nothing.

    Returns:
        The book.

    Raises:
        StoreError: the store cannot be used.
    """
    if no_keep:
        return None
    from steelyard.runs.store import RunStore

    return ForecastBook(RunStore(store or None), f"{source}: {column}")


def load_recipe(path: Path) -> tuple[Demand, AutoscaleConfig]:
    """Read a recipe.

    Args:
        path: TOML or JSON file, such as recipes/autoscale-demo.toml.

    Returns:
        The demand and the options.

    Raises:
        ConfigError: fields are unknown, missing or out of range.
    """
    recipe = convert(read(path), _Recipe, where=str(path))
    if recipe.demand:
        return demand_of(str(path.parent / recipe.demand), recipe.column), recipe.service
    from steelyard.operate.forecast.corpus import generate_corpus

    step_s = 300.0
    length = round(recipe.days * 86_400 / step_s)
    series = generate_corpus(
        1, length=length, seed=recipe.service.seed, archetypes=(recipe.archetype,)
    )
    source = f"generated: {recipe.archetype}"
    made = demand_of_series(series, source=source, is_measured=False)
    # The corpus draws a step of its own for each series; its values are per step all the same.
    return replace(made, step_s=step_s, start_s=0.0), recipe.service
