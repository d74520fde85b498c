"""Costing layouts beside llm-analysis: how many per second, and how near to published runs.

Both cost the same layouts of 175 billion parameters, one thread each, in turn: the peer one by one,
as it has no arrays. Both forecast the published dense 16-bit runs; one factor per chip is fitted to
each tool on the same half of the rows, by a hash of the row's id, and the other half is compared.
The peer takes no bubbles, no collectives and no products' shapes into its training time.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import peers
from benchmarks.common import Check, alternate
from benchmarks.plan._published_runs import PublishedRun, network_bytes_per_s, published_runs
from benchmarks.serve._json_process import JsonProcess, peer_environment
from numpy.typing import NDArray

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.cost.layout import Layout
from steelyard.cost.roofline import Machine
from steelyard.cost.step import training_step
from steelyard.errors import BackendError

PAPER = ["17-frontier-llm"]

_PEER = "llm-analysis"
_CHIPS = {
    "A100-SXM-80GB": "a100-sxm-80gb",
    "A100-SXM-40GB": "a100-sxm-40gb",
    "A100-PCIe-40GB": "a100-pcie-40gb",
    "H100-SXM-80GB": "h100-sxm-80gb",
    "H100-96GB-HBM2e-500W": "h100-sxm-80gb",
}
"""The peer's names of the rows' chips."""
_LENGTH, _BATCH = 2048, 1536
_OURS, _THEIRS = 1_000_000, 500
"""Layouts costed in a round; both take a fifth of a second or more."""
_PIECE = 50_000
"""Layouts in one call of ours: a call takes 3 ms however few there are."""
_GPT = Architecture(
    name="GPT-3 175B",
    hidden_size=12288,
    num_layers=96,
    num_heads=96,
    num_kv_heads=96,
    head_dim=128,
    intermediate_size=49152,
    vocab_size=51200,
    max_positions=_LENGTH,
    mlp="gelu",
)


def run(quick: bool) -> list[Check]:
    """Compare rates and errors; without the peer our own are compared with their bars."""
    hint = f"python -m benchmarks peers install {_PEER}"
    program = str(Path(__file__).with_name("_calculator_program.py"))
    try:
        command = [str(peers.python(_PEER)), program]
        peer = JsonProcess(command, {}, peer_environment(), hint)
    except BackendError as error:
        print(f"left out: {error}; {error.hint}")
        return [*_rates(None, 3 if quick else 9)]
    try:
        return [*_rates(peer, 3 if quick else 9), *_errors(peer)]
    finally:
        peer.close()


def _rates(peer: JsonProcess | None, rounds: int) -> list[Check]:
    """Time both in turn."""
    layouts = _layouts()
    repeats = _OURS // len(layouts["tensor"]) + 1
    columns = {name: np.tile(column, repeats)[:_OURS] for name, column in layouts.items()}
    machine = Machine.from_accelerator(
        catalog.accelerator("A100-SXM4-80GB"), cluster=catalog.cluster("Selene")
    )
    rivals: dict[str, Any] = {"ours": lambda: _cost(columns, machine)}
    if peer is not None:
        asked = [_peer_layout(layouts, index % len(layouts["tensor"])) for index in range(_THEIRS)]
        rivals["peer"] = lambda: peer.ask({"steps": asked})
    seconds = alternate(rivals, rounds=rounds)
    ours = [_OURS / each for each in seconds["ours"]]
    print(f"ours {np.median(ours):.3g} layouts/s [{min(ours):.3g}, {max(ours):.3g}]")
    checks = [Check("layouts per second, one core", float(np.median(ours)), 1e6, "higher")]
    if peer is not None:
        theirs = [_THEIRS / each for each in seconds["peer"]]
        print(f"{peer.name} {np.median(theirs):.3g} [{min(theirs):.3g}, {max(theirs):.3g}]")
        gain = float(np.median(np.array(ours) / np.array(theirs)))
        checks.append(Check("layouts per second over the peer's", gain, 100.0, "higher"))
    return checks


def _layouts() -> dict[str, NDArray[np.int64]]:
    """Return every split of 1,024 accelerators whose batch divides, as columns."""
    rows = [
        (tensor, pipeline, 1024 // tensor // pipeline, micro, zero)
        for tensor, pipeline in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32))
        for micro, zero in itertools.product((1, 2, 4), (0, 1))
        if _BATCH % (1024 // tensor // pipeline * micro) == 0
    ]
    names = ("tensor", "pipeline", "data", "micro_batch", "zero_stage")
    return dict(zip(names, np.array(rows, dtype=np.int64).T, strict=True))


def _cost(columns: dict[str, NDArray[np.int64]], machine: Machine) -> None:
    """Cost layouts piece by piece."""
    for begin in range(0, _OURS, _PIECE):
        part = {name: column[begin : begin + _PIECE] for name, column in columns.items()}
        micro, data = part.pop("micro_batch"), part["data"]
        training_step(
            _GPT,
            machine=machine,
            micro_batch=micro,
            sequence_length=_LENGTH,
            accumulation=_BATCH // (data * micro),
            layout=Layout(recompute="full", **part),
        )


def _peer_layout(layouts: dict[str, NDArray[np.int64]], index: int) -> dict[str, Any]:
    """Return a layout as the peer reads it."""
    one = {name: int(column[index]) for name, column in layouts.items()}
    layout = Layout(
        tensor=one["tensor"],
        pipeline=one["pipeline"],
        data=one["data"],
        zero_stage=one["zero_stage"],
        recompute="full",
    )
    steps = _BATCH // (one["data"] * one["micro_batch"])
    return _asked("A100-SXM-80GB", _GPT, layout, one["micro_batch"], steps, _LENGTH, fused=True)


def _asked(
    chip: str,
    arch: Architecture,
    layout: Layout,
    micro: int,
    steps: float,
    length: int,
    fused: bool,
) -> dict[str, Any]:
    """Return a step as the peer reads it."""
    return {
        "chip": _CHIPS[chip],
        "network_gb_per_s": network_bytes_per_s(chip) / 1e9,
        "model": {
            "name": arch.name,
            "num_layers": arch.num_layers,
            "n_head": arch.num_heads,
            "num_key_value_heads": arch.num_kv_heads,
            "hidden_dim": arch.hidden_size,
            "ffn_embed_dim": arch.intermediate_size,
            # It takes the ratio for whole otherwise.
            "expansion_ratio": arch.intermediate_size / arch.hidden_size,
            "vocab_size": arch.vocab_size,
            "max_seq_len": length,
        },
        "degrees": {
            "tp_size": layout.tensor,
            "pp_size": layout.pipeline,
            "dp_size": layout.data * layout.context,
        },
        "micro_batch": micro,
        "accumulation": steps,
        "sequence_length": length,
        "recompute": layout.recompute,
        "zero_stage": layout.zero_stage,
        "flash_attention": fused,
        "gated": arch.mlp == "swiglu",
    }


def _errors(peer: JsonProcess) -> list[Check]:
    """Forecast published runs with both, one factor per chip fitted on half of them."""
    runs, _ = published_runs()
    if not runs:
        print("the published runs are not there: errors were not compared")
        return []
    steps = [
        _asked(
            run.chip,
            run.step.arch,
            run.step.layout,
            run.step.micro_batch,
            run.step.accumulation,
            run.step.sequence_length,
            run.step.flash_attention,
        )
        for run in runs
    ]
    times = np.array(peer.ask({"steps": steps})["step_s"])
    known = times > 0
    print(f"{peer.name} answers {known.sum()} of {len(runs)} runs; these are compared")
    tokens = np.array([_tokens(run) for run in runs])
    theirs = np.divide(tokens, times, out=np.zeros(len(runs)), where=known)
    ours = np.array([run.forecast for run in runs])
    held = known & ~np.array([run.is_fitted for run in runs])
    medians = {}
    for name, rates in (("ours", ours), (peer.name, theirs)):
        error = np.abs(rates * _factors(runs, rates, known) / _published(runs) - 1)[held]
        medians[name] = float(np.median(error))
        tail = np.percentile(error, 90)
        print(f"{name}: median error {medians[name]:.1%}, 90 % {tail:.1%} of {held.sum()} held out")
    found = medians["ours"] / medians[peer.name]
    return [Check("held-out runs, median error over the peer's", found, 1.0, "lower")]


def _tokens(run: PublishedRun) -> float:
    """Return tokens of a step per accelerator."""
    step = run.step
    sequences = step.micro_batch * step.accumulation * step.layout.data
    return sequences * step.sequence_length / run.accelerators


def _published(runs: list[PublishedRun]) -> NDArray[np.float64]:
    return np.array([run.published for run in runs])


def _factors(
    runs: list[PublishedRun], rates: NDArray[np.float64], known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return each run's factor: the median of its chip over the half that may be fitted."""
    chips = np.array([run.chip for run in runs])
    fitted = known & np.array([run.is_fitted for run in runs])
    found = np.ones(len(runs))
    for chip in set(chips[fitted]):
        mine = fitted & (chips == chip)
        found[chips == chip] = np.median(_published(runs)[mine] / rates[mine])
    return found
