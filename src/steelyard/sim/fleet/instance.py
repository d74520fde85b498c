"""Instances of a serving fleet, simulated by the compiled loop."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.cost.phase_time import PHASES, PhaseStepTime
from steelyard.cost.step_time import FEATURES
from steelyard.errors import CapacityError, ConfigError, TraceError, require
from steelyard.sim.fleet.contents import BlockContents, number_contents
from steelyard.sim.fleet.kernel import run_events
from steelyard.sim.fleet.state import (
    BLOCKS,
    BOTH,
    DECODE,
    FEWEST,
    GROUPS,
    JOBS,
    LANES,
    LONGEST,
    NONE,
    PLACES,
    PREFILL,
    REPLICAS,
    ROTATION,
    STEPS,
    FleetState,
    Records,
)
from steelyard.sim.timeline import Timeline

__all__ = ["FleetRun", "ReplicaGroup", "ReplicaRole", "simulate_fleet"]

ReplicaRole = Literal["both", "prefill", "decode"]
_ROLES = {"both": BOTH, "prefill": PREFILL, "decode": DECODE}
_RULES = {"fewest": FEWEST, "rotation": ROTATION, "prefix": LONGEST}
_ORDERS = ("fcfs", "priority")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaGroup:
    """Equal replicas of a fleet.

    Attributes:
        step_time: seconds of a step through all stages.
        blocks: blocks of the pool of each micro-batch.
        role: whether they run prompts, decode, or do both.
        count: how many.
        stages: stages of each one's pipeline, and micro-batches unless it only runs prompts.
        block_size: token slots per block, a power of two.
        token_budget: most tokens of a step, as in `serve.SchedulerConfig`.
        max_num_seqs: most sequences of a micro-batch, at most the token budget.
        watermark_fraction: share of the pool kept free when a request is admitted beside others.
        whole_prompts: whether prompts run undivided in steps of their own.
        prefix_caching: whether equal prefixes share blocks, and are not computed or sent again.
        policy: order in which requests are served: by arrival, or by their priority.
        transfer_latency_s: seconds before keys and values begin to come, for each request.
        transfer_s_per_token: seconds in which those of a token come.
        route: how a replica is chosen: in turn, the one with the fewest requests, or the one that
            holds most of the prompt.
        route_slack: most requests that one chosen for its prompts may have beyond the emptiest.
    """

    step_time: PhaseStepTime
    blocks: int
    role: ReplicaRole = "both"
    count: int = 1
    stages: int = 1
    block_size: int = 16
    token_budget: int = 2048
    max_num_seqs: int = 256
    watermark_fraction: float = 0.01
    whole_prompts: bool = False
    prefix_caching: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    transfer_latency_s: float = 0.0
    transfer_s_per_token: float = 0.0
    route: Literal["fewest", "rotation", "prefix"] = "fewest"
    route_slack: int = 8

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        size = self.block_size
        require(
            self,
            blocks=(self.blocks >= 1, "at least 1"),
            count=(self.count >= 1, "at least 1"),
            stages=(self.stages >= 1, "at least 1"),
            block_size=(size >= 1 and size & (size - 1) == 0, "a power of two"),
            max_num_seqs=(
                1 <= self.max_num_seqs <= self.token_budget,
                f"in [1, token_budget = {self.token_budget}]",
            ),
            watermark_fraction=(0 <= self.watermark_fraction < 1, "in [0, 1)"),
            whole_prompts=(
                self.role != "prefill" or self.whole_prompts,
                "true where replicas only run prompts",
            ),
            policy=(
                self.policy in _ORDERS,
                "fcfs or priority; other orders only run with `serve.replica.SchedulerReplica`",
            ),
            route=(self.route in _RULES, f"one of {', '.join(_RULES)}"),
            route_slack=(self.route_slack >= 0, "at least 0"),
            transfer_latency_s=(self.transfer_latency_s >= 0, "at least 0"),
            transfer_s_per_token=(self.transfer_s_per_token >= 0, "at least 0"),
        )

    @property
    def num_lanes(self) -> int:
        """Micro-batches of each replica."""
        return 1 if self.role == "prefill" else self.stages


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetRun:
    """What the requests of one run saw.

    Attributes:
        timeline: arrivals, first and last tokens; no steps.
        first: replica that ran each prompt, int64 [R]; -1 where it had run before.
        second: replica that decoded each, int64 [R]; -1 where that is the same.
        steps: records of `state.STEPS`, as many as were asked for.
        num_steps: steps of all replicas.
        num_preemptions: how often keys and values were dropped.
        cached_tokens: prompt tokens of each request that were found where its prompt ran, int64
            [R].
    """

    timeline: Timeline
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    steps: Records
    num_steps: int
    num_preemptions: int
    cached_tokens: NDArray[np.int64]


def simulate_fleet(
    groups: Sequence[ReplicaGroup],
    arrival_s: ArrayLike,
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    *,
    block_ids: Sequence[Sequence[int]] = (),
    priority: ArrayLike | None = None,
    windows: Sequence[ArrayLike] = (),
    keep_steps: int = 0,
) -> FleetRun:
    """Serve requests with one or two groups of replicas, in virtual time.

    The same as `run_fleet` with replicas of `serve.replica.replicas_of` (a test holds them step for
    step). Fair orders, swaps, sequences of one request, replicas that come and go: only there.

    Args:
        groups: replicas that take arrivals, and where these only run prompts, those that decode;
            without a second group prompts or decoding are simulated alone.
        arrival_s: [R] seconds, not falling.
        input_tokens: [R] prompt lengths, at least 1.
        output_tokens: [R] tokens to generate, at least 1.
        block_ids: what the leading full blocks of each request hold, as in `FleetJob`; empty where
            nothing is shared.
        priority: [R] the smallest runs first in groups that serve by priority; all equal else.
        windows: times at which each group's replicas are ready and take no more requests,
            seconds [count, 2]; all of them always by default. One that is let go ends what it has,
            and requests that find none wait for that which is ready next.
        keep_steps: steps to keep, the first ones.

    Returns:
        Times of the requests, in their order.

    Raises:
        ConfigError: the roles of the groups do not go together.
        TraceError: a row of the trace is bad.
        CapacityError: a request is larger than the pool of a micro-batch.

    Source: Zhong et al. 2024 (arXiv 2401.09670), sections 4.1 and 4.3.
    """
    roles = tuple(group.role for group in groups)
    if roles not in (("both",), ("prefill",), ("decode",), ("prefill", "decode")):
        raise ConfigError(
            f"groups of replicas with the roles {', '.join(roles) or 'none'}",
            hint="give one group, or one that prefills and one that decodes",
        )
    jobs = _jobs(arrival_s, input_tokens, output_tokens)
    _check_room(groups, jobs)
    if priority is not None:
        jobs["given"] = _ranks(priority, len(jobs))
    contents = _contents(groups, jobs, block_ids)
    state = _state(groups, jobs, contents, keep_steps)
    if len(windows):
        _open(state, groups, windows)
    if not run_events(state):
        raise CapacityError(
            "some request never finished", hint="give the replicas more room for keys and values"
        )
    return _fleet_run(state)


def _jobs(arrival_s: ArrayLike, input_tokens: ArrayLike, output_tokens: ArrayLike) -> Records:
    """Make the table of requests."""
    columns: dict[str, NDArray[Any]] = {
        "arrival_s": np.asarray(arrival_s, dtype=np.float64),
        "input": np.asarray(input_tokens, dtype=np.int64),
        "output": np.asarray(output_tokens, dtype=np.int64),
    }
    times = columns["arrival_s"]
    if {item.shape for item in columns.values()} != {(times.size,)} or not times.size:
        raise TraceError("arrivals and lengths must be lists of one length, and not empty")
    good = {
        "arrival_s": np.isfinite(times) & (times >= 0) & (np.diff(times, prepend=0.0) >= 0),
        "input": columns["input"] >= 1,
        "output": columns["output"] >= 1,
    }
    for name, rows in good.items():
        if not rows.all():
            row = int(np.argmin(rows))
            raise TraceError(
                f"row {row} of the trace: {name} is {columns[name][row]}",
                hint="arrivals are finite, at least 0 and do not fall; lengths are at least 1",
            )
    jobs = np.zeros(times.size, JOBS)
    for name, values in columns.items():
        jobs[name] = values
    for name in ("after", "lane", "first", "second"):
        jobs[name] = NONE
    return jobs


def _ranks(priority: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return priorities as ranks from 0 up."""
    given = np.asarray(priority)
    if given.shape != (count,):
        raise TraceError(f"{given.size} priorities for {count} requests", hint="give one for each")
    return np.unique(given, return_inverse=True)[1].astype(np.int64)


def _contents(
    groups: Sequence[ReplicaGroup], jobs: Records, block_ids: Sequence[Sequence[int]]
) -> BlockContents:
    """Number what the blocks hold, where some group shares them."""
    sizes = {group.block_size for group in groups if group.prefix_caching}
    if len(sizes) > 1:
        raise ConfigError(
            f"groups that share prefixes have blocks of {sorted(sizes)} tokens",
            hint="give them one block size",
        )
    if len(block_ids) not in (0, len(jobs)):
        raise TraceError(
            f"block ids of {len(block_ids)} requests for a trace of {len(jobs)}",
            hint="give one list for each request, empty for a prompt of its own",
        )
    made = number_contents(
        jobs["input"] + jobs["output"], sizes.pop() if sizes else 0, block_ids or [()] * len(jobs)
    )
    jobs["content"], jobs["full"] = made.first, made.count
    return made


def _open(state: FleetState, groups: Sequence[ReplicaGroup], windows: Sequence[ArrayLike]) -> None:
    """Set when the replicas take requests."""
    times = [np.asarray(item, dtype=np.float64) for item in windows]
    if [item.shape for item in times] != [(group.count, 2) for group in groups]:
        raise ConfigError(
            f"windows of the shapes {[item.shape for item in times]} for "
            f"{[group.count for group in groups]} replicas",
            hint="give each group an array [count, 2] of seconds",
        )
    both = np.concatenate(times)
    if not (both[:, 0] >= 0).all() or not (both[:, 1] >= both[:, 0]).all():
        raise ConfigError(
            "windows that begin before 0 or end before they begin", hint="give [ready, let go]"
        )
    state.replicas["open_s"], state.replicas["close_s"] = both.T
    # Nothing runs before it is ready: its stages are busy until then.
    state.stage_s[:] = both[:, :1]


def _check_room(groups: Sequence[ReplicaGroup], jobs: Records) -> None:
    """Refuse requests that a micro-batch could not hold even alone."""
    for group in groups:
        # A replica for prompts makes the first token only; the others are made elsewhere.
        tokens = jobs["input"] + (1 if group.role == "prefill" else jobs["output"])
        room = group.blocks * group.block_size
        if tokens.max() > room:
            row = int(tokens.argmax())
            raise CapacityError(
                f"row {row} of the trace has {tokens[row]} tokens, but a micro-batch of "
                f"{group.role} replicas holds {room}",
                hint="leave longer requests out, or give the replicas more memory",
            )


def _state(
    groups: Sequence[ReplicaGroup], jobs: Records, contents: BlockContents, keep_steps: int
) -> FleetState:
    """Make the tables of a fleet in which nothing has happened yet."""
    count = sum(group.count for group in groups)
    lanes = np.zeros(sum(group.count * group.num_lanes for group in groups), LANES)
    replicas, rules = np.zeros(count, REPLICAS), np.zeros(len(groups), GROUPS)
    for name in ("head", "oldest", "newest", "pull_head", "pull_tail"):
        lanes[name] = NONE
    for name in ("land_head", "land_tail", "fly_head", "fly_tail"):
        replicas[name] = NONE
    replicas["next_s"] = math.inf
    replicas["close_s"] = math.inf
    replica = lane = 0
    for index, group in enumerate(groups):
        rules[index] = _rule(group, replica)
        for _ in range(group.count):
            replicas[replica]["group"], replicas[replica]["lane"] = index, lane
            replicas[replica]["latest"] = group.num_lanes - 1
            lanes["free"][lane : lane + group.num_lanes] = group.blocks
            replica, lane = replica + 1, lane + group.num_lanes
    most = max(group.max_num_seqs for group in groups) + 1
    places = contents.num_places(len(lanes), len(groups))
    blocks = np.zeros((len(groups), len(contents.numbers)), BLOCKS)
    blocks["content"] = contents.numbers
    return FleetState(
        jobs=jobs,
        lanes=lanes,
        replicas=replicas,
        groups=rules,
        tables=np.array([group.step_time.table for group in groups]).reshape(
            -1, len(PHASES), len(FEATURES)
        ),
        lists=np.zeros((4, len(lanes), most), np.int64),
        tails=np.full((len(lanes), int(jobs["given"].max()) + 1), NONE),
        blocks=blocks,
        places=np.zeros(places, PLACES),
        stage_s=np.zeros((count, max(group.stages for group in groups))),
        features=np.zeros(len(FEATURES)),
        steps=np.zeros(keep_steps, STEPS),
        counts=np.array([0, 0, 0, contents.num_shared, contents.num_alone]),
    )


def _rule(group: ReplicaGroup, replica: int) -> tuple[Any, ...]:
    """Return the record of a group, in the order of `GROUPS`."""
    return (
        _ROLES[group.role],
        group.count,
        replica,
        group.stages,
        group.num_lanes,
        group.blocks,
        group.block_size,
        group.token_budget,
        group.max_num_seqs,
        int(group.watermark_fraction * group.blocks),
        group.whole_prompts,
        group.prefix_caching,
        group.policy == "priority",
        _RULES[group.route],
        group.route_slack if group.route == "prefix" else 0,
        0,
        group.step_time.large_batch,
        group.transfer_latency_s,
        group.transfer_s_per_token,
    )


def _fleet_run(state: FleetState) -> FleetRun:
    """Collect what the requests saw."""
    jobs = state.jobs
    empty = np.empty(0)
    return FleetRun(
        timeline=Timeline(
            arrival_s=jobs["arrival_s"],
            first_token_s=jobs["first_s"],
            last_token_s=jobs["last_s"],
            output_tokens=jobs["made"],
            step_features=empty,
            step_s=empty,
            kv_utilization=empty,
        ),
        first=jobs["first"],
        second=jobs["second"],
        steps=state.steps[: min(len(state.steps), int(state.counts[0]))],
        num_steps=int(state.counts[0]),
        num_preemptions=int(state.counts[2]),
        cached_tokens=jobs["cached"],
    )
