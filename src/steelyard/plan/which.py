"""Which accelerator: the same work on every kind, ranked by money, time and energy."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.bill import bill
from steelyard.cost.roofline import Machine
from steelyard.cost.weights import WEIGHT_TYPES, WeightType
from steelyard.errors import CatalogError, ConfigError
from steelyard.plan.intervals import first_token, served_relative, step_relative, timed
from steelyard.plan.layouts import LayoutSearch, search_layouts
from steelyard.plan.machines import nodes_of
from steelyard.plan.replicas import (
    ServingGoal,
    Work,
    best_replica,
    replica_works,
    serving_machine,
)
from steelyard.plan.types import layout_words
from steelyard.quantity import Forecast

__all__ = [
    "Contender",
    "ServingGoal",
    "layouts_of",
    "which_for_serving",
    "which_for_training",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One kind of accelerator for the work that was asked about.

    Attributes:
        accelerator: catalog name.
        count: accelerators that do the work; 0 where it cannot.
        setting: layout or batch in a few words.
        forecasts: time, energy and money, as far as they are known.
        reason: why it is not the first, or cannot do the work; empty for the first.
    """

    accelerator: str
    count: int
    setting: str = ""
    forecasts: tuple[Forecast, ...] = ()
    reason: str = ""

    def value(self, quantity: str) -> float:
        """Return the forecast of a quantity, infinite where there is none."""
        return next((item.value for item in self.forecasts if item.quantity == quantity), math.inf)


def which_for_training(
    arch: Architecture,
    accelerators: Iterable[Accelerator],
    *,
    tokens: float,
    count: int,
    site: Site,
    dtype: str = "bf16",
    sequence_length: int = 2048,
    global_batch: int = 512,
) -> list[Contender]:
    """Rank accelerators for a training run.

    Args:
        arch: model to train.
        accelerators: records to compare.
        tokens: tokens of the run.
        count: accelerators of each kind.
        site: place with its electricity.
        dtype: number format of the products.
        sequence_length: tokens per sequence.
        global_batch: sequences per step.

    Returns:
        Contenders, the cheapest first; those of unknown price after them by time; those that cannot
        at the end.

    Raises:
        ConfigError: tokens or count are not above 0.
    """
    if not (tokens > 0 and count > 0):
        raise ConfigError(f"tokens {tokens:g} and count {count} must be above 0")
    found = []
    for record in accelerators:
        try:
            found.append(
                _trained(arch, record, tokens, count, site, dtype, sequence_length, global_batch)
            )
        except CatalogError as error:
            # A chip without a rate for this type stays in the table: its absence would be a riddle.
            found.append(Contender(accelerator=record.name, count=0, reason=str(error)))
    return _ranked(found, "run.cost", "train.total_time")


def layouts_of(
    arch: Architecture,
    record: Accelerator,
    count: int,
    dtype: str = "bf16",
    sequence_length: int = 2048,
    global_batch: int = 512,
) -> tuple[Machine, LayoutSearch]:
    """Return the machine and every layout of a training run on some accelerators of a kind."""
    machine = Machine.from_accelerator(record, dtype=dtype, cluster=nodes_of(record, count))
    return machine, search_layouts(
        arch, machine, counts=[count], global_batch=global_batch, sequence_length=sequence_length
    )


def _trained(
    arch: Architecture,
    record: Accelerator,
    tokens: float,
    count: int,
    site: Site,
    dtype: str,
    sequence_length: int,
    global_batch: int,
) -> Contender:
    """Plan the run on one kind of accelerator by its fastest layout."""
    machine, search = layouts_of(arch, record, count, dtype, sequence_length, global_batch)
    best = search.best(search.fits)
    if best < 0:
        least = float(search.memory_bytes.min()) / 1e9 if len(search.fits) else math.inf
        reason = (
            f"does not fit: needs {least:,.0f} GB, has {search.limit_bytes / 1e9:,.0f} GB on each"
        )
        return Contender(accelerator=record.name, count=0, reason=reason)
    seconds = tokens / float(search.tokens_per_s[best])
    relative = step_relative(machine, search.one_cost(best), arch)
    return Contender(
        accelerator=record.name,
        count=count,
        setting=layout_words(search.choice(best)),
        forecasts=(
            *timed(
                machine,
                {"train.total_time": seconds, "train.mfu": float(search.cost.mfu[best])},
                relative=relative,
            ),
            *_billed(record, site, seconds, count, relative),
        ),
    )


def _billed(
    record: Accelerator, site: Site, seconds: float, count: int, relative: float
) -> list[Forecast]:
    """Forecast energy, and money where a rent is known.

    Hardware that is owned and written off would be cheaper than any rent: rents are compared with
    rents only.
    """
    found = bill(
        duration_s=seconds,
        num_accelerators=count,
        accelerator=record,
        site=site,
        prefers_rent=True,
        duration_relative=relative,
    ).forecasts
    return [item for item in found if record.price_usd_per_hour or item.quantity != "run.cost"]


def _ranked(found: list[Contender], money: str, time: str) -> list[Contender]:
    """Sort contenders and say of each but the first why it is not the first."""
    # An unknown rent is infinite money here, so that such chips follow, ordered by time.
    found.sort(key=lambda item: (item.count == 0, item.value(money), item.value(time)))
    if not found or not found[0].count:
        return found
    first = found[0]
    return [first, *(_with_reason(item, first, money, time) for item in found[1:])]


def _with_reason(item: Contender, first: Contender, money: str, time: str) -> Contender:
    """Say why a contender is not the first."""
    if not item.count:
        return item
    spent, seconds = (item.value(name) / first.value(name) for name in (money, time))
    pace = f"{seconds:.3g}x the time" if time == "train.total_time" else ""
    if math.isinf(item.value(money)):
        reason = "no rent is known" + (f"; {pace}" if pace else "")
    else:
        reason = f"{spent:.3g}x the money" + (f", {pace}" if pace else "")
    return replace(item, reason=reason)


def which_for_serving(
    arch: Architecture,
    accelerators: Iterable[Accelerator],
    goal: ServingGoal,
    *,
    site: Site,
    weights: str = "bf16",
) -> list[Contender]:
    """Rank accelerators for a deployment by its money per hour.

    A replica runs the largest batch that meets both limits: requests decode together, and each new
    prompt holds all of them up for its own time. It is planned for 80 % of its rate.

    Args:
        arch: model to serve.
        accelerators: records to compare.
        goal: load and limits.
        site: place with its electricity.
        weights: type the weights are stored in.

    Returns:
        Contenders, the cheapest first; those of unknown price after them by their number; those
        that cannot at the end. Energy and money are of one hour.
    """
    kind = WEIGHT_TYPES[weights]
    works = replica_works(arch, kind, goal)
    found = [_served(record, kind, goal, works, site) for record in accelerators]
    return _ranked(found, "run.cost", "plan.num_accelerators")


def _served(
    record: Accelerator, kind: WeightType, goal: ServingGoal, works: list[Work], site: Site
) -> Contender:
    """Deploy on one kind of accelerator: the replica size that needs the fewest accelerators."""
    machine = serving_machine(record, kind)
    if machine is None:
        known = ", ".join(sorted(record.peak_flops_per_s))
        return Contender(
            accelerator=record.name, count=0, reason=f"no rate for {kind.name}; it has {known}"
        )
    best = best_replica(record, machine, goal, works)
    if isinstance(best, str):
        return Contender(accelerator=record.name, count=0, reason=best)
    count = best.accelerators(goal)
    relative = served_relative(machine, best.parts)
    return Contender(
        accelerator=record.name,
        count=count,
        setting=f"{count // best.count} x {best.count}, batch {best.batch}",
        forecasts=(
            *timed(machine, {"plan.num_accelerators": count}, relative=relative),
            first_token(machine, best.ttft_s, best.batch, relative=relative),
            *timed(machine, {"serve.tpot": best.tpot_s}, relative=relative),
            *_billed(record, site, 3600.0, count, relative),
        ),
    )
