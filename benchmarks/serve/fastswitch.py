"""Swapping by runs of blocks, asynchronously and by increments, against block-wise swapping.

Multi-turn conversations (ShareGPT lengths at 1/8, geometric turns of 5.5 in the mean, exponential
think time) on a small Llama with random weights; priorities are drawn anew every 25 steps (f =
0.04), requests that do not fit are swapped to a file on disk. Both sides run the same model, load,
priorities and file store; the baseline takes blocks one by one, copies each block's keys and values
of each layer on their own, lets no step run meanwhile, and sends whole requests each time. Then two
clients, one of which sends four times as much, under virtual token counters and under first come,
first served; and the cost of fair orders after a hundred thousand clients.
"""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from benchmarks.common import Check, median_spread
from benchmarks.serve._conversation_run import BlockwiseTiers, GroupTiers, Run, run_conversations
from benchmarks.serve._conversations import Conversation, make_conversations
from benchmarks.serve._drawn_order import RandomPriorities
from benchmarks.serve._fair_run import fairness_checks
from benchmarks.serve._many_clients import many_client_checks
from benchmarks.serve._swap_replay import bandwidth_shares, reuse_share

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import Transformer, build
from steelyard.serve import SchedulerConfig
from steelyard.serve.engine import LLM
from steelyard.serve.kv.tiers import make_store
from steelyard.serve.traces import TraceRow, read_rows

PAPER = ["66-fastswitch"]

_SCALE = 1 / 8
_SHARED = (
    Path(os.environ.get("STEELYARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    / "data"
)


def run(quick: bool) -> list[Check]:
    """Run both sides on the same conversations, the transfers alone, and the fair orders."""
    torch.set_num_threads(1)
    model = _model()
    lengths = _lengths()
    folder = Path(tempfile.mkdtemp(prefix="steelyard-swap-"))
    try:
        conversations = _load(model, lengths, folder, quick=quick)
        rounds = [
            (
                _serve(model, conversations, folder, quick, ours=True),
                _serve(model, conversations, folder, quick, ours=False),
            )
        ]
        if not quick:
            rounds.append(
                (
                    _serve(model, conversations, folder, quick, ours=True),
                    _serve(model, conversations, folder, quick, ours=False),
                )
            )
        checks = _latency_checks(rounds)
        ours, baseline = rounds[0]
        per_switch = [
            copies / len(item.history)
            for item, copies in ((ours, ours.copies), (baseline, baseline.copies))
        ]
        print(f"copies per switch: runs {per_switch[0]:.1f}, blocks {per_switch[1]:.1f}")
        checks.append(
            Check(
                "2 copies per switch, block-wise over ours",
                per_switch[1] / per_switch[0],
                20.0,
                "higher",
            )
        )
        runs, blocks = bandwidth_shares(
            ours.history, baseline.history, folder, _shape(quick), rounds=2 if quick else 5
        )
        checks.append(
            Check("2 bandwidth of our transfers over that of large blocks", runs, 0.8, "higher")
        )
        checks.append(
            Check(
                "2 bandwidth of block-wise transfers over that of large blocks",
                blocks,
                0.4,
                "lower",
            )
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    share = reuse_share(_conversations(lengths, 40 if quick else 300), _config(quick, ours=True))
    checks.append(
        Check("3 bytes swapped out with reuse of host copies over without", share, 0.55, "lower")
    )
    checks.append(
        Check(
            "4 key/value slots wasted with block groups", float(np.mean(ours.waste)), 0.05, "lower"
        )
    )
    checks.append(
        Check("4 allocator's share of step time", ours.allocator_s / ours.step_s, 0.02, "lower")
    )
    changed = sum(ours.outputs[name] != tokens for name, tokens in baseline.outputs.items())
    return [
        *checks,
        *fairness_checks(model, lengths, 20 if quick else 100, changed),
        *many_client_checks(quick),
    ]


def _load(
    model: Transformer, lengths: list[TraceRow], folder: Path, *, quick: bool
) -> list[Conversation]:
    """Draw conversations that come four times as fast as this machine serves some at once."""
    # The load follows the machine's speed, so that memory is as short on any machine.
    pilot = _conversations(lengths, 4 if quick else 12, rate_per_s=100.0, mean_think_s=0.02)
    pace_per_s = len(pilot) / _serve(model, pilot, folder, quick, ours=True).seconds
    drawn = _conversations(
        lengths, 10 if quick else 48, rate_per_s=4 * pace_per_s, mean_think_s=0.5 / pace_per_s
    )
    turns = sum(len(item.turns) for item in drawn)
    print(
        f"{len(drawn)} conversations, {turns} turns, {4 * pace_per_s:.2f} new ones per s, lengths "
        f"at 1/8 of ShareGPT's, 1 compute thread"
    )
    return drawn


def _latency_checks(rounds: list[tuple[Run, Run]]) -> list[Check]:
    """Compare tails and throughput, round by round."""
    for ours, baseline in rounds:
        print(f"ours       {ours.describe()}")
        print(f"block-wise {baseline.describe()}")

    def gain(name: str, level: float) -> float:
        pairs = [
            (np.percentile(getattr(b, name), level), np.percentile(getattr(a, name), level))
            for a, b in rounds
        ]
        return median_spread([float(slow / fast) for slow, fast in pairs]).median

    rate = median_spread([a.tokens_per_s / b.tokens_per_s for a, b in rounds]).median
    return [
        Check("1 P99 time to first token, block-wise over ours", gain("ttft_s", 99), 2.0, "higher"),
        Check(
            "1 P99.9 time between tokens, block-wise over ours", gain("gaps_s", 99.9), 3.0, "higher"
        ),
        Check("1 throughput, ours over block-wise", rate, 1.2, "higher"),
    ]


def _serve(
    model: Transformer, conversations: list[Conversation], folder: Path, quick: bool, *, ours: bool
) -> Run:
    """Run one side."""
    llm = LLM(model, _config(quick, ours=ours), make_policy=lambda: RandomPriorities(seed=1))
    assert llm.driver.tiers is not None
    llm.driver.tiers.close()
    store = make_store(llm.runner.kv, llm.config.host_blocks, folder)
    llm.driver.tiers = (GroupTiers if ours else BlockwiseTiers)(llm.runner.kv, store)
    try:
        return run_conversations(llm, conversations)
    finally:
        llm.close()


def _config(quick: bool, *, ours: bool) -> SchedulerConfig:
    """Return the limits of one side; they differ in allocator and reuse."""
    return SchedulerConfig(
        num_blocks=_num_blocks(quick),
        max_model_len=1024,
        token_budget=256,
        max_num_seqs=32,
        prefix_caching=False,
        update_every=25,
        preemption="swap",
        host_blocks=4096,
        keep_turns=True,
        reuse_host_copies=ours,
        allocator="block-group" if ours else "paged",
    )


_LAYERS = 8


def _num_blocks(quick: bool) -> int:
    """Return the size of the pool; fewer conversations get a smaller one."""
    return 80 if quick else 192


def _shape(quick: bool) -> tuple[int, ...]:
    """Return the shape of the pool: 256 KB per block."""
    return _LAYERS, 2, _num_blocks(quick), 4, 16, 64


def _model() -> Transformer:
    """Build a Llama of 10M parameters whose keys and values are wide: 16 KB per token."""
    arch = Architecture(
        name="bench-swap",
        hidden_size=256,
        num_layers=_LAYERS,
        num_heads=4,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=704,
        vocab_size=4096,
        max_positions=1024,
        tied_embeddings=False,
    )
    return build(arch, seed=0).eval()


def _lengths() -> list[TraceRow]:
    """Read ShareGPT's lengths; without them, draw lognormal ones of the same means."""
    path = _SHARED / "llm-traces" / "sharegpt_lengths.csv.gz"
    if path.is_file():
        return list(read_rows(path))
    print(
        "sharegpt_lengths.csv.gz is not on this machine; lognormal lengths of the same means "
        "instead"
    )
    draws = np.random.default_rng(5).lognormal(np.log([298.8, 323.7]) - 0.5, 1.0, (2000, 2))
    sizes = np.clip(draws, 1, 4096).astype(int).tolist()
    return [
        TraceRow(arrival_s=0.0, input_tokens=question, output_tokens=answer)
        for question, answer in sizes
    ]


def _conversations(
    lengths: list[TraceRow], count: int, *, rate_per_s: float = 5.0, mean_think_s: float = 0.5
) -> list[Conversation]:
    """Draw the load."""
    return make_conversations(
        lengths,
        np.random.default_rng(0),
        num_conversations=count,
        rate_per_s=rate_per_s,
        vocab_size=4096,
        length_scale=_SCALE,
        mean_think_s=mean_think_s,
        max_tokens=1024,
    )
