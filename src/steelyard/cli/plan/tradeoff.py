"""`steelyard plan tradeoff`: context, accuracy and performance of long-context techniques."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.cli.models import find_model
from steelyard.cli.output import Switch, print_report
from steelyard.cli.plan.tradeoff_pages import advice_page, explained_page, table_page
from steelyard.config import convert, load, to_plain
from steelyard.errors import ConfigError, DataError
from steelyard.files import read_json, write_json
from steelyard.plan.tradeoff.cells import Measured, MeasurePlan
from steelyard.plan.tradeoff.configuration import Configuration, standard_configurations
from steelyard.plan.tradeoff.tasks import Template
from steelyard.units import parse

if TYPE_CHECKING:
    import numpy as np

    from steelyard.nn.transformer import Transformer
    from steelyard.plan.tradeoff.table import TradeoffTable
    from steelyard.serve.front.text import TextCodec

__all__ = ["tradeoff"]

tradeoff = cyclopts.App(name="tradeoff")
_FILE = "measured.json"
_BASIC = "dense"


@tradeoff.command
def recommend(
    *,
    model: str = "",
    machine: str = "",
    measured: Path | None = None,
    context: str,
    drop: float = 0.01,
    ttft: str = "",
    tpot: str = "",
    output: int = 256,
    shared: float = 0.0,
    dtype: str = "bf16",
    memory: str = "",
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Rank techniques for a context, a loss of accuracy and latencies; say what to relax.

    Example: steelyard plan tradeoff recommend --measured tradeoff --context 32k --tpot '20 ms'

    Context and latencies are predicted for --machine, or those measured here without it. Accuracy
    is never assumed: what is neither exact nor in --measured must be measured.

    Args:
        model: catalog name of the model, or its size, such as 7B; not with --measured.
        machine: catalog name of the accelerator.
        measured: folder that `plan tradeoff measure` wrote, of the model that is to be served.
        context: tokens of the longest context.
        drop: largest share of right answers that may be lost.
        ttft: longest time to the first token of such a context; none when empty.
        tpot: longest time of a further token; none when empty.
        output: tokens of an answer.
        shared: share of prompts that an engine with prefix caching has computed before.
        dtype: number format of weights and cache where nothing is quantized.
        memory: memory for weights, keys and values, such as 40GB; the accelerator's when empty.
        json: print the advice as JSON.
        report: HTML file for the page.
    """
    from steelyard.plan.tradeoff.predicted import Goals
    from steelyard.plan.tradeoff.recommend import recommend as advise

    goals = Goals(
        context=round(parse(context, "token", where="--context")),
        accuracy_drop=drop,
        ttft_s=parse(ttft, "s", where="--ttft") if ttft else math.inf,
        tpot_s=parse(tpot, "s", where="--tpot") if tpot else math.inf,
        output_tokens=output,
        shared=shared,
    )
    if not machine and measured is None:
        raise ConfigError(
            "neither --machine nor --measured is given",
            hint="--machine for predictions, --measured for this machine",
        )
    table = None if measured is None else _table(measured)
    arch = _architecture(model, table)
    advice = advise(
        goals,
        arch,
        catalog.accelerator(machine) if machine else None,
        dtype=dtype,
        memory_bytes=parse(memory, "byte", where="--memory") if memory else 0.0,
        table=table,
    )
    print_report(
        advice_page(advice, arch.name, machine or "this machine"),
        json=json,
        html=report,
        values=to_plain(advice) | {"feasible": advice.is_feasible},
    )
    if not advice.is_feasible:
        raise SystemExit(1)


@tradeoff.command
def measure(
    model: str,
    *,
    out: Annotated[Path, cyclopts.Parameter(alias="-o")],
    text: Path | None = None,
    lengths: tuple[int, ...] = (),
    memory: str = "",
    ttft: str = "",
    only: tuple[str, ...] = (),
    stretch: float = 4.0,
    window: int = 128,
    questions: int = 8,
    seeds: int = 3,
    template: Path | None = None,
    processor_time: Switch = False,
    store: Path | None = None,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Measure a model in many configurations: what is recalled, how fast, in equal memory.

    Example: steelyard plan tradeoff measure quickstart-out --out tradeoff --questions 4

    A measurement that was killed goes on where it was. Each configuration becomes a run.

    Args:
        model: folder of a model or of a quickstart, or a run's name or id.
        out: folder that keeps what was measured.
        text: file or folder of text that the model was not trained on; what every Python
            installation carries when left out.
        lengths: tokens of contexts; a quarter, a half, once and twice what the model was trained
            for when left out.
        memory: memory of weights, keys and values together, the same for all; that of the dense
            model with four contexts of the trained length when empty.
        ttft: longest time to the first token; what takes longer does not count as served.
        only: names of configurations, the baseline first; all when left out.
        stretch: how many times farther position techniques reach.
        window: tokens that bounded caches keep.
        questions: questions of a task, length and seed.
        seeds: repeats of all questions, with others each time; at least 3.
        template: TOML file that says how records are written; English sentences when left out.
        processor_time: count seconds of the processor on this process alone, on a machine that
            others use meanwhile; wall time else.
        store: run store; the user's own when left out.
        json: print the table as JSON.
        report: HTML file for the page with the picture.
    """
    from steelyard.plan.tradeoff.keeping import keep_runs
    from steelyard.plan.tradeoff.measure import measure as run
    from steelyard.plan.tradeoff.table import tabulate
    from steelyard.runs.progress import progress
    from steelyard.runs.store import RunStore

    folder = find_model(model).folder
    decoder, codec, tokens = _subject(folder, text)
    plan = _plan(decoder, lengths, memory, ttft, questions, seeds, template)
    with progress("measure", quiet=json) as advance:
        measured = run(
            decoder,
            _chosen(standard_configurations(stretch=stretch, cache_tokens=window), only),
            plan,
            text=tokens,
            encode=codec.encode,
            begins=_begins(codec, decoder.architecture.vocab_size),
            folder=out / "cells",
            clock="processor" if processor_time else "wall",
            advance=advance,
        )
    write_json(out / _FILE, to_plain(measured))
    table = tabulate(measured)
    keep_runs(table, RunStore(store), folder)
    print_report(table_page(table), json=json, html=report, values=to_plain(table.points))


@tradeoff.command
def explain(
    measured: Path,
    name: str,
    *,
    base: str = _BASIC,
    json: Switch = False,
) -> None:
    """Say what a measured configuration gains and loses against another, with the noise.

    Example: steelyard plan tradeoff explain tradeoff window --base dense

    Args:
        measured: folder that `plan tradeoff measure` wrote.
        name: the configuration.
        base: what it is compared with.
        json: print the sentences and the move as JSON.
    """
    from steelyard.plan.tradeoff.explain import explain as say

    table = _table(measured)
    said = say(table, name, base)
    values = {"sentences": said, "move": to_plain(table.move(name, base))}
    print_report(explained_page(name, base, said), json=json, values=values)


def _plan(
    model: "Transformer",
    lengths: tuple[int, ...],
    memory: str,
    ttft: str,
    questions: int,
    seeds: int,
    template: Path | None,
) -> MeasurePlan:
    """Return what is measured."""
    trained = model.architecture.max_positions
    wanted = lengths or (trained // 4, trained // 2, trained, 2 * trained)
    return MeasurePlan(
        lengths=wanted,
        reference=tuple(length for length in wanted if length <= trained) or wanted[:1],
        memory_bytes=round(parse(memory, "byte", where="--memory")) if memory else _memory(model),
        ttft_s=parse(ttft, "s", where="--ttft") if ttft else 0.0,
        seeds=tuple(range(seeds)),
        count=questions,
        template=load(template, Template) if template else Template(),
    )


def _architecture(model: str, table: "TradeoffTable | None") -> Architecture:
    """Return the model that is to be served."""
    from steelyard.plan.shapes import model_of

    if (table is None) == (not model):
        raise ConfigError(
            "give either --model or --measured, whose model is the one that was measured"
        )
    return table.measured.model if table is not None else model_of(model)[0]


def _table(folder: Path) -> "TradeoffTable":
    """Read a measurement."""
    from steelyard.plan.tradeoff.table import tabulate

    path = folder / _FILE
    if not path.is_file():
        raise DataError(
            f"{folder} holds no {_FILE}", hint="`steelyard plan tradeoff measure` writes it"
        )
    return tabulate(convert(read_json(path), Measured, where=str(path)))


def _chosen(known: list[Configuration], only: tuple[str, ...]) -> list[Configuration]:
    """Return the configurations that are asked for, in the order asked."""
    by_name = {item.name: item for item in known}
    if unknown := [name for name in only if name not in by_name]:
        raise ConfigError(
            f"--only {unknown[0]!r} is no configuration", hint=f"known: {', '.join(by_name)}"
        )
    return [by_name[name] for name in only] or known


def _subject(folder: Path, text: Path | None) -> "tuple[Transformer, TextCodec, np.ndarray]":
    """Load a model, its tokenizer and text."""
    from steelyard.nn import checkpoint
    from steelyard.serve.front.text import TextCodec
    from steelyard.serve.quantize.sequences import read_tokens

    codec = TextCodec.load(folder)
    if codec.tokenizer is None:
        raise ConfigError(
            f"{folder} has no tokenizer, and questions are sentences",
            hint="put tokenizer.json into the folder",
        )
    import torch

    model = checkpoint.load(folder, dtype=torch.float32)
    return model, codec, read_tokens(text, folder).numpy()


def _memory(model: "Transformer") -> int:
    """Return the memory of the dense model with four contexts of the trained length."""
    from steelyard.cost.memory import kv_bytes_per_token
    from steelyard.plan.tradeoff.running import weight_bytes

    arch = model.architecture
    cache = 4 * (arch.max_positions + 32) * kv_bytes_per_token(arch, 4)
    return round(weight_bytes(model, "fp32") + cache)


def _begins(codec: "TextCodec", size: int) -> "np.ndarray[Any, Any]":
    """Return which tokens begin a word."""
    import numpy as np

    return np.array([codec.piece_bytes(token)[:1] in (b" ", b"\n") for token in range(size)])
