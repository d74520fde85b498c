"""A micro-batch of a simulated replica: a scheduler with a pool of its own, and its requests."""

from collections import deque
from dataclasses import dataclass, field

from steelyard.serve.kv.blocks import BlockTable
from steelyard.serve.kv.prefix import PrefixIndex
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.memory import KVMemory
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.scheduler import Scheduler
from steelyard.serve.scheduling.step import StepPlan
from steelyard.sim.fleet.jobs import FleetJob

__all__ = ["LandedMemory", "ReplicaLane", "make_lane", "prompt_digests"]


def prompt_digests(job: FleetJob, count: int, prefix: PrefixIndex, size: int) -> list[bytes]:
    """Return what the leading blocks of a job are known by in a prefix index.

    Args:
        job: job with tokens, or with ids of its blocks.
        count: blocks that are wanted, no more than its prompt fills where it has tokens.
        prefix: the index.
        size: token slots per block.

    Returns:
        Digests of `count` blocks, or of as many as have ids.
    """
    if job.prompt:
        return Request(id="", prompt=job.prompt).hash_blocks(prefix.root, size, count)
    return [name.to_bytes(16, "big", signed=True) for name in job.block_ids[:count]]


class LandedMemory(KVMemory):
    """Memory in which requests start whose keys and values came from elsewhere."""

    def __init__(self, config: SchedulerConfig) -> None:
        """Start with every block free."""
        super().__init__(config)
        self._landed: dict[str, BlockTable] = {}

    def reserve(self, request: Request, headroom: int) -> bool:
        """Take blocks for keys and values that are to come; those known already are shared.

        Args:
            request: its prompt ran elsewhere.
            headroom: blocks that must stay available beside.

        Returns:
            Whether it got them; `num_computed` then counts what needs not come.
        """
        return super().admit([request], headroom)

    def land(self, request: Request) -> None:
        """Note that all keys and values of a request's prompt are in its blocks."""
        size = len(request.prompt)
        self.remember(request, 0, size)
        request.num_computed = size
        self._landed[request.id] = request.table

    def admit(self, sequences: list[Request], headroom: int) -> bool:
        """Find a waiting request blocks; one that landed has its own."""
        if self._landed.pop(sequences[0].id, None) is None:
            return super().admit(sequences, headroom)
        return True


@dataclass(slots=True)
class ReplicaLane:
    """A micro-batch: what it runs and what is on its way to it.

    Attributes:
        scheduler: the engine's own.
        memory: its pool.
        jobs: requests of the scheduler by their ids.
        load: requests it was sent and has not finished with.
        plan: step that runs; None while idle.
        end_s: when that step ends.
        pulls: requests that wait for room for their keys and values.
        num_landing: requests whose keys and values are on their way.
    """

    scheduler: Scheduler
    memory: LandedMemory
    jobs: dict[str, FleetJob] = field(default_factory=dict)
    load: int = 0
    plan: StepPlan | None = None
    end_s: float = 0.0
    pulls: deque[tuple[FleetJob, Request]] = field(default_factory=deque)
    num_landing: int = 0

    def request(self, job: FleetJob, number: int, output_tokens: int) -> Request:
        """Make the scheduler's request of a job.

        Args:
            job: what comes.
            number: unlike that of any other request of this lane.
            output_tokens: tokens to make here.

        Returns:
            The request. Without a prompt, its blocks are known by the job's ids.

        Raises:
            ConfigError: it could never finish here.
        """
        request = Request(
            id=str(number),
            prompt=job.prompt or [0] * job.input_tokens,
            params=SamplingParams(max_tokens=output_tokens, ignore_end=True),
            arrival_s=job.arrival_s,
            priority=job.priority,
            client=job.client,
            user=job.user,
            expected_output=job.expected_output,
        )
        config, size = self.scheduler.config, self.scheduler.config.block_size
        if config.prefix_caching and not job.prompt:
            count = (job.input_tokens + output_tokens) // size
            request.block_hashes = prompt_digests(job, count, self.memory.prefix, size)
            # All made up tokens are equal; behind a block of its own none of them is shared. The
            # chain goes on from there, and no digest of another length equals one of the index.
            if len(request.block_hashes) < count:
                request.block_hashes.append(b"alone" + number.to_bytes(16, "big"))
        self.scheduler.check(request)
        return request


def make_lane(config: SchedulerConfig) -> ReplicaLane:
    """Return an idle micro-batch with these limits."""
    memory = LandedMemory(config)
    return ReplicaLane(Scheduler(config, memory=memory), memory)
