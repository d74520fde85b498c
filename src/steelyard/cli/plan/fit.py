"""`steelyard plan fit`: whether and where a model fits, how fast it is there, and for how much."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from steelyard import catalog
from steelyard.catalog import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.catalog.records import WORLD_AVERAGE
from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_json
from steelyard.cli.records import records_of
from steelyard.cli.why import plain_steps, why_section
from steelyard.config import to_plain
from steelyard.cost.money import OLD_PRICE, known_purchase_usd, with_rent
from steelyard.cost.roofline import Machine
from steelyard.cost.weights import WEIGHT_TYPES
from steelyard.cost.why.chain import ChainStep
from steelyard.errors import ConfigError
from steelyard.plan.fit import COUNTS, USES, Placement, Use, fits_on, place
from steelyard.plan.largest import largest_served
from steelyard.plan.machines import measured_machines
from steelyard.plan.own import own_choice
from steelyard.plan.placement_why import placement_chain
from steelyard.plan.rates import Load
from steelyard.plan.shapes import model_of
from steelyard.runs.report import Block, Cell, Column, Report, Section, Table, Text
from steelyard.units import parse, pretty

__all__ = ["fit", "old_prices", "weight_types"]

_ROWS = 8


def fit(
    model: str = "",
    *,
    params: str = "",
    context: str = "4k",
    users: int = 1,
    use: Use | None = None,
    weights: str = "",
    accelerator: str = "",
    count: int = 0,
    price: str = "",
    rows: int = _ROWS,
    why: Switch = False,
    json: Switch = False,
) -> int:
    """Say where a model fits for serving and training, how fast it is there, and for how much.

    Without a model: the largest models that this machine serves at 5 tokens/s or more.

    Example: steelyard plan fit llama-3.1-8b --context 8k --users 4 --use serve

    Args:
        model: catalog name of the model, or its size, such as 7B.
        params: size of the model, such as 7B, in place of a name.
        context: tokens of each sequence, such as 8k.
        users: sequences that are served together.
        use: serve, train (all weights) or lora (adapters); all three when left out.
        weights: type of the weights, one of fp32, bf16, fp8, int8 and int4; all when empty.
        accelerator: catalog name of the only accelerator to look at, or this-machine.
        count: accelerators of that kind; the fewest that suffice when 0.
        price: rent of one accelerator and hour, such as "2.5 USD"; that of the catalog when empty.
        rows: rows of each table.
        why: print the chain of formulas behind the first row of each table.
        json: print all placements as JSON.

    Returns:
        Exit status: 1 where the model fits nowhere.
    """
    tokens = _tokens(context)
    if users < 1 or count < 0 or rows < 1:
        raise ConfigError("--users and --rows are at least 1, --count at least 0")
    kinds = weight_types(weights)
    if not model and not params:
        return _print_largest(tokens, kinds, rows, why=why, json=json)
    arch, _ = model_of(model or params, sequence_length=tokens)
    asked = _Question(arch, model or params, _records(accelerator, price), tokens, users, why)
    found: dict[Use, list[Placement]] = {
        item: place(
            arch,
            asked.records,
            use=item,
            context=tokens,
            users=users,
            weights=kinds,
            counts=(count,) if count else COUNTS,
            site=catalog.site(WORLD_AVERAGE),
        )
        for item in ((use,) if use else USES)
    }
    everything = [item for placed in found.values() for item in placed]
    _check_any(everything)
    fits = any(item.fits for item in everything)
    if json:
        print_json(_values(asked, found))
        return 0 if fits else 1
    least = min(everything, key=lambda item: item.memory.total / item.limit_bytes)
    enough = 0 if fits else asked.enough(least)
    title = f"Where {arch.name} fits" if fits else _lack(least, arch, enough)
    _print(title, asked, found, rows, one_kind=bool(accelerator))
    _say_next(asked, everything[0] if fits else least, fits, enough)
    return 0 if fits else 1


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked: a model, where, and how it is used.

    Attributes:
        arch: model.
        name: how the user called it.
        records: accelerators to look at, each with its measured rooflines.
        context: tokens of each sequence.
        users: sequences served together.
        why: whether the chain is shown.
    """

    arch: Architecture
    name: str
    records: list[tuple[Accelerator, dict[str, Machine]]]
    context: int
    users: int
    why: bool

    @property
    def beyond(self) -> str:
        """A sentence where the context is longer than the model was made for, else empty."""
        most = self.arch.max_positions
        if not most or self.context <= most:
            return ""
        return f"{self.context:,} tokens are more than the {most:,} that {self.name} was made for"

    def record(self, item: Placement) -> tuple[Accelerator, dict[str, Machine]]:
        """Return the accelerator of a placement, with its measured rooflines."""
        return next(found for found in self.records if found[0].name == item.accelerator)

    def chain(self, item: Placement) -> list[ChainStep]:
        """Return the chain of formulas behind a placement."""
        record, measured = self.record(item)
        return placement_chain(
            self.arch,
            record,
            measured,
            item,
            context=self.context,
            users=self.users,
            site=catalog.site(WORLD_AVERAGE),
        )

    @property
    def choice(self) -> str:
        """What the server's own choice of weights would be here, in words; empty where unknown."""
        machines = [next(iter(found.values())) for _, found in self.records if found]
        load = Load(use="serve", context=self.context, users=self.users)
        found = own_choice(self.arch, load, machines[0]) if machines else None
        return f"On {THIS_MACHINE}, `steelyard serve`: {found.words()}." if found else ""

    def enough(self, item: Placement) -> int:
        """Return how many accelerators of a placement's kind would do, 0 for none."""
        return fits_on(
            self.arch,
            self.record(item)[0],
            use=item.use,
            weights=item.weights,
            context=self.context,
            users=self.users,
        )


def _values(asked: _Question, found: dict[Use, list[Placement]]) -> list[dict[str, Any]]:
    """Return the placements as JSON values, the first of each use with its chain."""
    plain: list[dict[str, Any]] = []
    for placed in found.values():
        for place_number, item in enumerate(placed):
            purchase, _ = known_purchase_usd(asked.record(item)[0])
            plain.append(
                _plain(item)
                | {"purchase_usd": purchase or None, "beyond_positions": bool(asked.beyond)}
                | (
                    {"why": plain_steps(asked.chain(item))}
                    if asked.why and not place_number
                    else {}
                )
            )
    return plain


def _say_next(asked: _Question, item: Placement, fits: bool, enough: int) -> None:
    """Say what to ask next: who does it for least, or where it would fit."""
    if fits and item.use == "serve":
        load = ("--rate", "1 request/s", "--weights", item.weights)
        say_next("plan", "which", "--model", asked.name, *load)
    elif fits:
        where = ("--accelerator", item.accelerator, *_count(item))
        say_next("plan", "train", "--budget", "1 day", *where, "--model", asked.name)
    else:
        where = ("--accelerator", item.accelerator, "--count", enough) if enough else ()
        how = ("--context", asked.context, "--users", asked.users, "--weights", item.weights)
        say_next("plan", "fit", asked.name, "--use", item.use, *how, *where)


def _count(item: Placement) -> tuple[object, ...]:
    """Return the option that counts accelerators; there is only one of this machine."""
    return () if item.accelerator == THIS_MACHINE else ("--count", item.count)


def _check_any(placed: list[Placement]) -> None:
    """Refuse a question that leaves nothing to place."""
    # A model splits over counts that divide its heads, and training keeps wide weights only.
    if not placed:
        raise ConfigError(
            "nothing can be placed so", hint="try another --count, or --weights bf16 for training"
        )


def _tokens(context: str) -> int:
    """Read a context length such as "8k", which is 8,192 tokens."""
    text = context.strip().lower()
    if text.endswith("k") and text[:-1].isdigit():
        return 1024 * int(text[:-1]) or 1
    tokens = round(parse(context, "token", where="--context"))
    if tokens < 1:
        raise ConfigError(f"--context is {context!r}, but must be at least 1 token")
    return tokens


def weight_types(name: str) -> tuple[str, ...]:
    """Return the weight types to try; an unknown one is refused."""
    if name and name not in WEIGHT_TYPES:
        raise ConfigError(f"--weights {name!r} is not one of {', '.join(WEIGHT_TYPES)}")
    return (name,) if name else tuple(WEIGHT_TYPES)


def _records(name: str, price: str) -> list[tuple[Accelerator, dict[str, Machine]]]:
    """Return the accelerators to look at, this machine with its measured rates."""
    names = [name] if name else catalog.names("accelerators")
    records = [catalog.accelerator(item) for item in names]
    if price:
        rent = parse(price, "USD", where="--price")
        records = [with_rent(record, rent) for record in records]
    # A user's own record may be called this-machine too; only a calibration is measured.
    return [
        (record, measured_machines() if record.confidence == "measured" else {})
        for record in records
    ]


def _print(
    title: str, asked: _Question, found: dict[Use, list[Placement]], rows: int, *, one_kind: bool
) -> None:
    """Print a table per use: what fits first, the cheapest on top."""
    subtitle = f"{asked.context:,} tokens of context, {asked.users} served together"
    sections = [Section("", [Text(f"**{asked.beyond}**.")])] if asked.beyond else []
    for use, placed in found.items():
        blocks: list[Block] = [_table(_shown(placed, rows, one_kind))]
        if use == "serve" and asked.choice:
            blocks.append(Text(asked.choice))
        sections.append(Section(USES[use].capitalize(), blocks))
        if asked.why and placed:
            head = f"How the first row comes about: {placed[0].count} x {placed[0].accelerator}"
            sections.append(why_section(asked.chain(placed[0]), head))
    Report(title, subtitle, sections).print()


def _shown(placed: list[Placement], rows: int, one_kind: bool) -> list[Placement]:
    """Return the rows to show: of each accelerator the best, unless only one is looked at."""
    if one_kind:
        return placed[:rows]
    best: dict[str, Placement] = {}
    for item in placed:
        best.setdefault(item.accelerator, item)
    shown = list(best.values())[:rows]
    own = [item for item in placed if item.accelerator == THIS_MACHINE][:1]
    return shown + [item for item in own if item not in shown]


def _table(placed: list[Placement]) -> Table:
    """Make the table of placements."""
    heads = [
        Column("accelerator"),
        Column("weights"),
        Column("fits"),
        Column("memory", align="right"),
        Column("of", align="right", rank=1),
        Column("tokens/s", align="right"),
        Column("80 % interval", align="right", rank=2),
        Column("USD per million", align="right"),
        Column("bound by", rank=3),
    ]
    sources = dict.fromkeys(item.tokens_per_s.source for item in placed if item.tokens_per_s)
    notes = []
    if not all(item.has_engine for item in placed):
        notes.append(
            "weights marked * are a forecast: no engine of this package computes with them yet"
        )
    if len(sources) == 1:
        notes.append(next(iter(sources)))
    notes += old_prices(item.price_source for item in placed)
    own = [item for item in placed if item.accelerator == THIS_MACHINE]
    if own and (said := _record_words(own[0].use)):
        notes.append(said)
    rows = [_row(item) for item in placed]
    return Table(columns=heads, rows=rows, caption="; ".join(notes))


def old_prices(sources: Iterable[str]) -> list[str]:
    """Return what a caption has to say of prices of long ago, once each."""
    return list(dict.fromkeys(source for source in sources if source.endswith(OLD_PRICE)))


def _row(item: Placement) -> list[Cell]:
    """Make the row of a placement."""
    rate = item.tokens_per_s
    money = item.usd_per_million
    return [
        f"{item.count} x {item.accelerator}",
        item.weights if item.has_engine else f"{item.weights}*",
        "yes" if item.fits else "no",
        pretty(item.memory.total, "byte"),
        pretty(item.limit_bytes, "byte"),
        f"{rate.value:,.3g}" if rate else "",
        f"{rate.low:,.3g} .. {rate.high:,.3g}" if rate else "",
        f"{money:,.3g}" if money is not None else "rent unknown" if rate else "",
        item.bound,
    ]


def _plain(item: Placement) -> dict[str, Any]:
    """Return a placement as JSON values."""
    return to_plain(item) | {"fits": item.fits}


def _lack(least: Placement, arch: Architecture, enough: int) -> str:
    """Say what the least short placement needs, has, and how many would do."""
    return (
        f"{arch.name} does not fit: needs {pretty(least.memory.total, 'byte')} in {least.weights}, "
        f"{least.count} x {least.accelerator} has {pretty(least.limit_bytes, 'byte')} each"
        + (f"; fits on {enough}" if enough else "")
    )


def _print_largest(
    context: int, weights: tuple[str, ...], rows: int, *, why: bool, json: bool
) -> int:
    """Print the largest models that this machine serves at a bearable pace."""
    record, measured = catalog.accelerator(THIS_MACHINE), measured_machines()
    found = largest_served(record, measured, context=context, weights=weights)
    if json:
        print_json([{"model": arch.name} | _plain(item) for arch, item in found])
        return 0
    heads = [Column("model"), *_table([]).columns[1:]]
    lines = [[arch.name, *_row(item)[1:]] for arch, item in found[:rows]]
    caption = _record_words("serve")
    sections = [Section("", [Table(columns=heads, rows=lines, caption=caption)])]
    subtitle = f"largest first, {context:,} tokens of context, 5 tokens/s or more"
    if why and found:
        arch, item = found[0]
        asked = _Question(arch, arch.name, [(record, measured)], context, 1, why)
        sections.append(why_section(asked.chain(item), f"How {arch.name} comes about"))
    Report("What this machine serves", subtitle, sections).print()
    if found:
        first = ("fit", found[0][0].name, "--accelerator", THIS_MACHINE, "--use", "serve")
        say_next("plan", *first, "--context", context)
    return 0


def _record_words(use: Use) -> str:
    """Say how good such forecasts have been on this machine, empty without a record."""
    name = "serve.tpot" if use == "serve" else "train.step_time"
    found = records_of(THIS_MACHINE, "serve" if use == "serve" else "train")
    return f"{name} on this machine: {found[name]}" if name in found else ""
