"""Whatever comes and goes, the pool's books add up, and an idle pool is full again."""

import numpy as np
from benchmarks.serve._contiguous import contiguous_scheduler
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from steelyard.serve import Request, SamplingParams, Scheduler, SchedulerConfig
from steelyard.serve.scheduling.step import StepOutput


class Books(RuleBasedStateMachine):
    """Drives a scheduler with made-up tokens, late transfers, aborts and steps one ahead."""

    def __init__(self):
        super().__init__()
        self.flights, self.under_way = [], []
        self.generator = np.random.default_rng(0)
        self.count = 0

    @initialize(
        allocator=st.sampled_from(["paged", "block-group", "contiguous-max", "contiguous-pow2"]),
        preemption=st.sampled_from(["recompute", "swap"]),
        policy=st.sampled_from(["fcfs", "priority", "vtc"]),
        update_every=st.sampled_from([0, 2]),
        ahead=st.booleans(),
        keep_turns=st.booleans(),
    )
    def set_up(self, allocator, preemption, policy, update_every, ahead, keep_turns):
        is_contiguous = allocator.startswith("contiguous")
        self.ahead = ahead
        config = SchedulerConfig(
            num_blocks=32 if is_contiguous else 14,
            block_size=4,
            token_budget=9,
            max_num_seqs=6,
            max_model_len=32,
            allocator="paged" if is_contiguous else allocator,
            preemption="recompute" if is_contiguous else preemption,
            host_blocks=16,
            policy=policy,
            update_every=update_every,
            keep_turns=keep_turns,
        )
        self.scheduler = (
            contiguous_scheduler(config, allocator.removeprefix("contiguous-"))
            if is_contiguous
            else Scheduler(config)
        )

    @rule(
        prompt=st.integers(1, 16),
        output=st.integers(1, 8),
        kind=st.sampled_from(["plain", "plain", "n", "beams"]),
        client=st.sampled_from("ab"),
    )
    def add(self, prompt, output, kind, client):
        several = {"plain": {}, "n": {"n": 2, "best_of": 3}, "beams": {"n": 1, "beam_width": 2}}[
            kind
        ]
        params = SamplingParams(max_tokens=output, stop_tokens=(1,), **several)
        tokens = self.generator.integers(0, 3, prompt).tolist()
        if kind != "plain" and params.num_sequences * (prompt + output) > 32:
            return
        self.count += 1
        self.scheduler.add(
            Request(
                id=f"r{self.count}",
                prompt=tokens,
                params=params,
                client=client,
                priority=self.count % 3,
            ),
            0.0,
        )

    @rule(number=st.integers(1, 12))
    def abort(self, number):
        self.scheduler.abort(f"r{number}")

    @rule()
    def schedule(self):
        if len(self.flights) > (1 if self.ahead else 0):
            self.complete()
        if self.flights and not self.ahead:
            return
        plan = self.scheduler.schedule(0.0)
        if plan is None:
            return
        self.under_way += [transfer.id for transfer in plan.transfers]
        if plan.num_tokens:
            assert len(set(plan.slot_mapping.tolist())) == plan.num_tokens <= 9
            self.flights.append(plan)

    @precondition(lambda self: self.flights)
    @rule()
    def complete(self):
        plan = self.flights.pop(0)
        rows, draw = len(plan.sampled), self.generator.integers
        top = np.array([self.generator.permutation(40)[:4] for _ in range(rows)]).reshape(rows, 4)
        logprobs = -np.sort(self.generator.random((rows, 4)), axis=1)
        output = StepOutput(
            tokens=draw(0, 8, rows), logprobs=logprobs[:, 0], top_tokens=top, top_logprobs=logprobs
        )
        for request in self.scheduler.complete(plan, output, 0.0):
            assert request.finish_reason in ("stop", "length")

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def land(self, data):
        name = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(name)
        (self.scheduler.land if data.draw(st.integers(0, 9)) else self.scheduler.fail)([name])

    @invariant()
    def users_are_tables(self):
        if not hasattr(self, "scheduler"):
            return
        pool = self.scheduler.pool
        tables = [member.table for request in self.scheduler.running for member in request.members]
        counted = np.bincount(
            np.concatenate([np.empty(0, dtype=np.int64), *(table.blocks for table in tables)]),
            minlength=pool.num_blocks,
        )
        users = np.array([pool.users(block) for block in range(pool.num_blocks)])
        assert (users >= counted).all()
        away = (
            self.scheduler.swapped
            or self.under_way
            or self.flights
            or self.scheduler.swapper.num_blocks_leaving
        )
        assert away or (users == counted).all()
        usage = self.scheduler.usage()
        assert (
            usage.stored + usage.cached + usage.reserved + usage.internal + usage.external
            == usage.num_slots
        )
        assert min(usage.stored, usage.cached, usage.reserved, usage.internal, usage.external) >= 0

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not (self.scheduler.has_work or self.under_way):
                break
            self.schedule()
            if self.flights:
                self.complete()
            self.scheduler.land(self.under_way)
            self.under_way = []
        assert not self.scheduler.has_work, "the scheduler did not come to an end"
        assert self.scheduler.pool.num_in_use == 0
        assert self.scheduler.pool.num_available == self.scheduler.pool.num_blocks


class TestBooks(Books.TestCase):
    settings = settings(
        max_examples=40,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
