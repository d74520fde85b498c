"""A replica of a simulated fleet that is made of the engine's own scheduler and block pool."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steelyard.errors import require
from steelyard.serve.kv.blocks import BlockTable
from steelyard.serve.kv.prefix import PrefixIndex
from steelyard.serve.replica_lane import ReplicaLane, make_lane
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan
from steelyard.sim.fleet.instance import ReplicaGroup, ReplicaRole
from steelyard.sim.fleet.jobs import FleetJob, Moved
from steelyard.sim.fleet.stages import StagePipeline

__all__ = ["ReplicaStep", "SchedulerReplica", "replicas_of"]


@dataclass(frozen=True, slots=True)
class ReplicaStep:
    """One step: its lane, start and end in seconds, prompt tokens, and decoding sequences."""

    lane: int
    start_s: float
    end_s: float
    prompt_tokens: int
    decodes: int


class SchedulerReplica:
    """An engine in virtual time, for `sim.fleet.run_fleet`.

    A pipeline of several stages runs as many micro-batches, each a `Scheduler` with its share of
    the pool. One that only runs prompts needs a single scheduler, as no prompt waits for the result
    of another. Blocks of a prompt that ran stay held until `release`, and a replica that decodes
    takes the blocks before it pulls keys and values into them, one transfer at a time.

    Attributes:
        steps: steps so far, in the order of their starts.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        step_time_s: Callable[[StepPlan], float],
        *,
        role: ReplicaRole = "both",
        stages: int = 1,
        hands_over: bool = True,
        transfer_s: Callable[[int], float] = lambda tokens: 0.0,
    ) -> None:
        """Start idle.

        Args:
            config: limits of one micro-batch.
            step_time_s: predicts the seconds that a step takes through all stages.
            role: whether it runs prompts, decodes, or does both.
            stages: stages of its pipeline, which take equal times.
            hands_over: whether prompts that ran here are decoded elsewhere; without a second group
                of replicas, requests end with their first token.
            transfer_s: predicts the seconds in which keys and values of so many tokens come.

        Raises:
            ConfigError: a replica for prompts alone divides them, or there is no stage.
        """
        require(
            config,
            whole_prompts=(
                role != "prefill" or config.whole_prompts,
                "true where a replica only runs prompts",
            ),
        )
        self.steps: list[ReplicaStep] = []
        self._role = role
        self._hands_over = hands_over
        self._step_time_s = step_time_s
        self._transfer_s = transfer_s
        self._pipeline = StagePipeline(stages)
        self._lanes = [make_lane(config) for _ in range(1 if role == "prefill" else stages)]
        self._latest = len(self._lanes) - 1
        self._count = 0
        self._now_s = -1.0
        self._link_s = 0.0
        self._landing: deque[tuple[float, ReplicaLane, FleetJob, Request]] = deque()
        self._flying: deque[FleetJob] = deque()
        self._held: dict[FleetJob, BlockTable] = {}

    @property
    def load(self) -> int:
        """Requests it was sent and has not finished with."""
        return sum(lane.load for lane in self._lanes)

    @property
    def prefixes(self) -> list[PrefixIndex]:
        """What the pool of each micro-batch knows."""
        return [lane.memory.prefix for lane in self._lanes]

    @property
    def block_size(self) -> int:
        """Token slots per block of its pools."""
        return self._lanes[0].scheduler.config.block_size

    def submit(self, job: FleetJob, now_s: float) -> None:
        """Take a request: from outside, or one whose prompt ran on another replica.

        Args:
            job: the request; where this replica only decodes, its prompt counts as run.
            now_s: the time.

        Raises:
            ConfigError: it could never finish here.
        """
        lane = min(self._lanes, key=lambda item: item.load)
        length = 1 if self._role == "prefill" else job.output_tokens
        request = lane.request(job, self._count, length)
        self._count += 1
        lane.load += 1
        lane.jobs[request.id] = job
        if self._role != "decode":
            lane.scheduler.add(request, now_s)
            return
        if job.second < 0:
            job.first_token_s = job.last_token_s = now_s
        request.output.append(0)
        request.first_token_s = request.last_token_s = job.first_token_s
        lane.pulls.append((job, request))

    def release(self, job: FleetJob) -> None:
        """Free the keys and values of a prompt that ran here."""
        table = self._held.pop(job, None)
        if table is not None:
            table.free(self._lanes[0].memory.pool)

    def next_event_s(self) -> float:
        """Return when something happens here by itself, infinity for never."""
        ends = [lane.end_s for lane in self._lanes if lane.plan is not None]
        idle = [lane.scheduler for lane in self._lanes if lane.plan is None]
        free_s = self._pipeline.free_s
        # At a time that was advanced to already, what could start has started.
        if free_s > self._now_s and any(item.running or item.waiting for item in idle):
            ends.append(free_s)
        ends += [item[0] for item in list(self._landing)[:1]]
        ends += [job.first_token_s for job in list(self._flying)[:1]]
        return min(ends, default=float("inf"))

    def advance(self, now_s: float) -> Moved:
        """Let happen what is due, and start what can start.

        Args:
            now_s: the time, not before that of the last call.

        Returns:
            What became of requests.
        """
        self._now_s = now_s
        moved = Moved()
        if self._role == "prefill":
            self._take_off(moved)
            return moved
        for lane in self._lanes:
            if lane.plan is not None and lane.end_s <= now_s:
                self._complete(lane, moved)
        self._land(moved)
        is_moving = self._role == "decode"
        while is_moving:
            for lane in self._lanes:
                self._pull(lane)
            is_moving = self._land(moved)  # of transfers that take no time
        while self._pipeline.free_s <= now_s and self._start():
            pass
        return moved

    def _run(self, place: int, plan: StepPlan) -> float:
        """Send a step through the stages; return its end."""
        end_s = self._pipeline.run(self._now_s, self._step_time_s(plan))
        prompts = plan.num_tokens - plan.num_decodes
        self.steps.append(ReplicaStep(place, self._now_s, end_s, prompts, plan.num_decodes))
        return end_s

    def _take_off(self, moved: Moved) -> None:
        """Hand over prompts that ran, and start the next."""
        lane = self._lanes[0]
        while self._flying and self._flying[0].first_token_s <= self._now_s:
            job = self._flying.popleft()
            lane.load -= 1
            if job.output_tokens > 1 and self._hands_over:
                moved.prefilled.append(job)
            else:
                self.release(job)
                moved.finished.append(job)
        while self._pipeline.free_s <= self._now_s:
            plan = lane.scheduler.schedule(self._now_s)
            if plan is None:
                return
            end_s = self._run(0, plan)
            for request in plan.sampled:
                job = lane.jobs.pop(request.id)
                job.cached_tokens = request.num_cached
                # The scheduler lets go of the request below, its blocks stay until the pull.
                table = request.table
                self._held[job] = table.fork(lane.memory.pool, table.num_blocks)
                job.first_token_s = job.last_token_s = end_s
                self._flying.append(job)
            # Nothing that follows depends on its results, so they are taken before it ends.
            lane.scheduler.complete(plan, plan.blank_output(), end_s)

    def _complete(self, lane: ReplicaLane, moved: Moved) -> None:
        """Take the results of a lane's step."""
        plan, lane.plan = lane.plan, None
        assert plan is not None
        for request in lane.scheduler.complete(plan, plan.blank_output(), lane.end_s):
            self._finish(lane, request, moved)

    def _finish(self, lane: ReplicaLane, request: Request, moved: Moved) -> None:
        """Report a request that has all its tokens."""
        job = lane.jobs.pop(request.id)
        job.first_token_s, job.last_token_s = request.first_token_s, request.last_token_s
        job.preempted += request.num_preemptions
        if self._role == "both":
            job.cached_tokens = request.num_cached
        lane.load -= 1
        moved.finished.append(job)

    def _start(self) -> bool:
        """Start a step of the first idle lane behind the one that planned last."""
        for turn in range(1, len(self._lanes) + 1):
            place = (self._latest + turn) % len(self._lanes)
            lane = self._lanes[place]
            plan = self._next_step(lane) if lane.plan is None else None
            if plan is not None:
                self._latest = place
                lane.plan = plan
                lane.end_s = self._run(place, plan)
                return True
        return False

    def _next_step(self, lane: ReplicaLane) -> StepPlan | None:
        """Plan the next step of an idle lane."""
        plan = lane.scheduler.schedule(self._now_s)
        # One that was admitted with all but its last token in the cache decodes at the second look.
        if plan is None and lane.scheduler.running:
            plan = lane.scheduler.schedule(self._now_s)
        return plan

    def _pull(self, lane: ReplicaLane) -> None:
        """Start transfers into a lane while it has room for them, in order."""
        scheduler, memory = lane.scheduler, lane.memory
        config = memory.config
        # Who was preempted comes first; with room kept for those, they can always come back.
        while lane.pulls and not scheduler.waiting:
            job, request = lane.pulls[0]
            if len(scheduler.running) + lane.num_landing + 1 > config.max_num_seqs:
                return
            watermark = max(int(config.watermark_fraction * config.num_blocks), 1)
            headroom = watermark if scheduler.running else 0
            if not memory.reserve(request, headroom):
                return
            lane.pulls.popleft()
            lane.num_landing += 1
            # What an earlier request left here needs not come again.
            missing = job.input_tokens - request.num_computed
            transfer_s = self._transfer_s(missing) if job.second >= 0 else 0.0
            self._link_s = max(self._now_s, self._link_s) + transfer_s
            self._landing.append((self._link_s, lane, job, request))

    def _land(self, moved: Moved) -> bool:
        """Let requests run whose keys and values came; return whether there were any."""
        if not self._landing or self._landing[0][0] > self._now_s:
            return False
        while self._landing and self._landing[0][0] <= self._now_s:
            _, lane, job, request = self._landing.popleft()
            lane.num_landing -= 1
            if job.second >= 0:
                moved.pulled.append(job)
            lane.memory.land(request)
            if len(request.output) >= job.output_tokens:
                request.table.free(lane.memory.pool)
                self._finish(lane, request, moved)
                continue
            lane.scheduler.add(request, self._now_s)
            admitted = lane.scheduler.take_in(request)
            assert admitted, "a place and blocks were kept for it"
        return True


def replicas_of(group: ReplicaGroup, *, hands_over: bool = True) -> list[SchedulerReplica]:
    """Make the replicas that a group describes.

    Args:
        group: limits and step times, as the compiled loop takes them.
        hands_over: whether prompts that run in a group for them are decoded elsewhere.

    Returns:
        Idle replicas, `group.count` of them.
    """
    config = SchedulerConfig(
        num_blocks=group.blocks,
        block_size=group.block_size,
        token_budget=group.token_budget,
        max_num_seqs=group.max_num_seqs,
        max_model_len=group.blocks * group.block_size,
        watermark_fraction=group.watermark_fraction,
        prefix_caching=group.prefix_caching,
        policy=group.policy,
        whole_prompts=group.whole_prompts,
    )
    model = group.step_time

    def step_time_s(plan: StepPlan) -> float:
        return float(np.asarray(model.predict(plan.features()[None]))[0])

    def transfer_s(tokens: int) -> float:
        return group.transfer_latency_s + group.transfer_s_per_token * tokens

    return [
        SchedulerReplica(
            config,
            step_time_s,
            role=group.role,
            stages=group.stages,
            hands_over=hands_over,
            transfer_s=transfer_s,
        )
        for _ in range(group.count)
    ]
