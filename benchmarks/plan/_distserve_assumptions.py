"""What the paper's own simulator assumes, one thing at a time in ours.

Its artifact (github.com/LLMServe/DistServe, folder `simdistserve`) judges the limits of the first
and of further tokens apart, each kept by 90 %; batches prompts up to the room for keys and values;
lets every decoding replica hold 50,000 tokens, whatever its split; adds 2 ms to each step, and 1 ms
for each stage and prompt; moves keys and values in no time; and tells rates apart by .25 requests
per second and accelerator.
"""

from collections.abc import Callable
from dataclasses import replace

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.plan.service.options import EngineOption
from steelyard.plan.service.search import ServiceSearch

__all__ = ["ASSUMPTIONS", "STEP_PER_DEVICE"]

_ROOM = 50_000
_STEP_S, _STAGE_S = 2e-3, 1e-3
STEP_PER_DEVICE = 0.25
"""Resolution of its search in requests per second and accelerator."""


def _with_options(
    search: ServiceSearch, change: Callable[[EngineOption], EngineOption]
) -> ServiceSearch:
    """Return the search with other splits."""
    return replace(search, options=tuple(change(item) for item in search.options))


def _roomy(option: EngineOption) -> EngineOption:
    """Give every micro-batch the room that the paper's simulator gives."""
    return replace(option, kv_tokens=_ROOM * option.pipeline)


def _slower(option: EngineOption) -> EngineOption:
    """Add what the paper's simulator adds to each step."""
    table = [list(row) for row in option.step_time.coefficients]
    for row in table:
        row[0] += _STEP_S
    table[0][0] += _STAGE_S * option.pipeline**2
    times = replace(option.step_time, coefficients=tuple(tuple(row) for row in table))
    assert isinstance(times, PhaseStepTime)
    return replace(option, step_time=times)


def _large_batches(search: ServiceSearch) -> ServiceSearch:
    """Let prompts run together up to any length."""
    return replace(search, limits=replace(search.limits, prefill_budget=_ROOM))


def _no_transfers(search: ServiceSearch) -> ServiceSearch:
    """Let keys and values pass in no time."""
    return replace(search, limits=replace(search.limits, node_transfer_s_per_token=0.0))


ASSUMPTIONS: dict[str, Callable[[ServiceSearch], ServiceSearch]] = {
    "as ours": lambda search: search,
    "50,000 tokens for every replica": lambda search: _with_options(search, _roomy),
    "2 ms more per step, 1 ms per stage": lambda search: _with_options(search, _slower),
    "prompts together up to 50,000 tokens": _large_batches,
    "no transfers": _no_transfers,
}
