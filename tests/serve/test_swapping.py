import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import CapacityError
from steelyard.serve import BlockPool, Request
from steelyard.serve.kv.groups import GroupPool
from steelyard.serve.kv.host import HostSpace
from steelyard.serve.scheduling.swaps.swapper import Swapper

SIZE = 4


class Bench:
    """A pool and a host tier whose blocks hold token names.

    Transfers copy block by block, at random times before they land.
    """

    def __init__(
        self, seed, *, num_blocks=24, host_blocks=40, reuse=True, keep_turns=False, grouped=True
    ):
        self.generator = np.random.default_rng(seed)
        self.pool = (
            GroupPool(num_blocks, SIZE, group_blocks=4) if grouped else BlockPool(num_blocks, SIZE)
        )
        self.swapper = Swapper(
            self.pool, HostSpace(host_blocks, SIZE), reuse=reuse, keep_turns=keep_turns
        )
        self.device = np.full((num_blocks, SIZE), -1)
        self.host = np.full((host_blocks, SIZE), -1)
        self.work = {}
        self.sent = 0

    def write(self, request, count):
        """Compute `count` tokens, as a step would."""
        request.table.grow(self.pool, request.num_computed + count)
        for position in range(request.num_computed, request.num_computed + count):
            self.device[request.table.blocks[position // SIZE], position % SIZE] = request.tokens(
                position, position + 1
            )[0]
        request.num_computed += count

    def check(self, request):
        for position in range(request.num_computed):
            block = request.table.blocks[position // SIZE]
            assert (
                self.device[block, position % SIZE] == request.tokens(position, position + 1)[0]
            ), f"{request.id} at {position}"

    def start(self):
        for transfer in self.swapper.drain():
            pairs = [(d + i, h + i) for d, h, count in transfer.runs.tolist() for i in range(count)]
            if transfer.direction == "out":
                self.sent += len(pairs)
            self.work[transfer.id] = (transfer.direction, pairs)

    def copy_some(self):
        for direction, pairs in self.work.values():
            for _ in range(int(self.generator.integers(3))):
                if pairs:
                    device, host = pairs.pop(int(self.generator.integers(len(pairs))))
                    self.copy(direction, device, host)

    def copy(self, direction, device, host):
        if direction == "out":
            self.host[host] = self.device[device]
        else:
            self.device[device] = self.host[host]

    def land(self, name=None):
        name = next(iter(self.work)) if name is None else name
        direction, pairs = self.work.pop(name)
        for device, host in pairs:
            self.copy(direction, device, host)
        return self.swapper.land([name])

    def fail(self, name):
        self.work.pop(name)
        return self.swapper.fail([name])


def running(name, size, start=0):
    return Request(id=name, prompt=[start + index for index in range(size)], state="running")


def away_and_back(bench, request):
    bench.swapper.start_out(request)
    bench.start()
    while bench.work:
        bench.land()
    assert bench.swapper.start_in(request)
    bench.start()
    bench.land()


def test_a_request_goes_and_comes_back_with_its_content():
    bench = Bench(0)
    request = running("a", 18)
    bench.write(request, 18)
    bench.swapper.start_out(request)
    assert (request.state, request.table.num_blocks, bench.pool.num_available) == (
        "swapping_out",
        0,
        19,
    )
    (transfer,) = bench.swapper.drain()
    assert (transfer.direction, transfer.request_id, transfer.runs.tolist()) == (
        "out",
        "a",
        [[0, 0, 5]],
    )
    assert bench.swapper.drain() == []
    assert not bench.swapper.start_in(request)
    bench.host[:5] = bench.device[:5]
    assert bench.swapper.land([transfer.id]) == [request]
    assert (request.state, bench.pool.num_available, request.num_computed) == ("swapped", 24, 18)
    assert bench.swapper.start_in(request)
    bench.start()
    assert request.state == "swapping_in"
    assert request.table.num_blocks == 0
    assert bench.land() == [request]
    assert request.state == "running"
    bench.check(request)


@pytest.mark.parametrize(("reuse", "sent"), [(True, 5 + 2), (False, 5 + 6)])
def test_only_new_tokens_are_sent_the_next_time(reuse, sent):
    bench = Bench(0, reuse=reuse)
    request = running("a", 22)
    bench.write(request, 18)
    away_and_back(bench, request)
    bench.write(request, 4)
    away_and_back(bench, request)
    assert bench.sent == sent
    bench.check(request)


def test_nothing_is_sent_when_the_host_has_it_all():
    bench = Bench(0)
    request = running("a", 18)
    bench.write(request, 18)
    away_and_back(bench, request)
    bench.swapper.start_out(request)
    assert request.state == "swapped"
    assert bench.swapper.drain() == []
    assert bench.pool.num_available == 24


def test_a_request_preempted_on_its_way_in_turns_back_without_a_copy():
    for started in (False, True):
        bench = Bench(0)
        request = running("a", 18)
        bench.write(request, 18)
        bench.swapper.start_out(request)
        bench.start()
        bench.land()
        bench.swapper.start_in(request)
        if started:
            bench.start()
        bench.swapper.start_out(request)
        if started:
            assert request.state == "swapping_out"
            assert bench.pool.num_available == 19
            bench.start()
            assert bench.land() == [request]
        assert request.state == "swapped"
        assert bench.pool.num_available == 24
        assert bench.swapper.drain() == []
        assert bench.swapper.start_in(request)
        bench.start()
        bench.land()
        bench.check(request)


def test_blocks_of_an_aborted_request_come_free_only_when_its_transfer_landed():
    bench = Bench(0)
    request = running("a", 18)
    bench.write(request, 18)
    bench.swapper.start_out(request)
    bench.start()
    bench.swapper.forget(request)
    again = running("a", 18, start=100)
    bench.write(again, 18)
    assert bench.pool.num_available == 14
    away = bench.swapper
    away.start_out(again)
    bench.start()
    assert bench.land(0) == []
    assert bench.pool.num_available == 19
    bench.land(1 if 1 in bench.work else None)
    away.start_in(again)
    bench.start()
    bench.land()
    bench.check(again)
    away.forget(again)
    again.table.free(bench.pool)
    assert (away.host.pool.num_in_use, bench.pool.num_available) == (0, 24)


def test_the_copy_of_a_resident_request_is_given_up_before_one_that_waits():
    bench = Bench(0, host_blocks=10, num_blocks=32)
    first, second, third = (
        running(name, 16, start) for name, start in (("a", 0), ("b", 50), ("c", 100))
    )
    for request in (first, second, third):
        bench.write(request, 16)
    away_and_back(bench, first)
    bench.swapper.start_out(second)
    bench.start()
    bench.land()
    assert bench.swapper.can_swap_out(third)
    bench.swapper.start_out(third)
    bench.start()
    bench.land()
    assert bench.swapper.host.find("a").valid_tokens == 8
    assert not bench.swapper.can_swap_out(first)
    for request in (second, third):
        assert bench.swapper.start_in(request)
        bench.start()
        bench.land()
        bench.check(request)
    assert bench.swapper.can_swap_out(first)
    bench.swapper.start_out(first)
    bench.start()
    bench.land()
    bench.swapper.start_in(first)
    bench.start()
    bench.land()
    bench.check(first)


def test_the_next_turn_finds_the_copy_of_the_one_before():
    bench = Bench(0, keep_turns=True)
    first = running("t0", 18)
    bench.write(first, 18)
    bench.swapper.retire(first)
    assert first.table.num_blocks == 1
    first.table.free(bench.pool)
    bench.start()
    assert bench.land() == []
    assert bench.pool.num_available == 24
    other = Request(id="x", prompt=list(range(50, 70)))
    assert not bench.swapper.adopt(other)
    turn = Request(id="t0", prompt=list(range(27)))
    assert bench.swapper.num_kept(turn) == 16
    assert bench.swapper.adopt(turn) == 16
    assert (turn.state, turn.num_computed) == ("swapped", 16)
    assert bench.swapper.start_in(turn)
    bench.start()
    bench.land()
    bench.write(turn, 11)
    bench.check(turn)
    assert not bench.swapper.adopt(Request(id="y", prompt=list(range(27))))
    before = bench.sent
    bench.swapper.retire(turn)
    turn.table.free(bench.pool)
    bench.start()
    bench.land()
    assert bench.sent - before == 2


def test_without_keeping_turns_a_request_that_ends_leaves_nothing():
    bench = Bench(0)
    request = running("a", 18)
    bench.write(request, 18)
    away_and_back(bench, request)
    bench.swapper.retire(request)
    request.table.free(bench.pool)
    assert (bench.swapper.host.pool.num_in_use, bench.pool.num_available) == (0, 24)


def test_a_failed_transfer_costs_what_it_carried_and_no_more():
    bench = Bench(0)
    request = running("a", 30)
    bench.write(request, 16)
    away_and_back(bench, request)
    bench.write(request, 14)
    bench.swapper.start_out(request)
    bench.start()
    assert bench.fail(2) == [request]
    assert (request.state, request.num_computed, bench.pool.num_available) == ("swapped", 16, 24)
    bench.swapper.start_in(request)
    bench.start()
    bench.fail(3)
    assert (request.state, request.num_computed, bench.pool.num_available) == ("waiting", 0, 24)
    assert bench.swapper.host.pool.num_in_use == 0
    fresh = running("b", 16)
    bench.write(fresh, 16)
    bench.swapper.start_out(fresh)
    bench.start()
    bench.fail(4)
    assert (fresh.state, fresh.num_computed, bench.swapper.host.pool.num_in_use) == (
        "waiting",
        0,
        0,
    )


def test_a_host_tier_without_room_refuses():
    bench = Bench(0, host_blocks=3)
    request = running("a", 16)
    bench.write(request, 16)
    assert not bench.swapper.can_swap_out(request)
    with pytest.raises(CapacityError, match="no room for 16 tokens"):
        bench.swapper.start_out(request)
    assert not bench.swapper.can_swap_out(Request(id="new", prompt=[1], state="running"))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000), st.booleans(), st.booleans(), st.booleans())
def test_no_interleaving_loses_a_token_or_a_block(seed, reuse, keep_turns, grouped):
    """Preemptions, returns, aborts, ends, failures and new turns; transfers end at random times."""
    bench = Bench(
        seed, reuse=reuse, keep_turns=keep_turns, grouped=grouped, host_blocks=8 + seed % 24
    )
    generator, swapper, count = bench.generator, bench.swapper, 0
    alive: list[Request] = []

    def admit():
        nonlocal count
        start = int(generator.integers(3)) * 1000 if keep_turns else count * 1000
        request = Request(
            id=f"r{count % 7}", prompt=list(range(start, start + int(generator.integers(1, 40))))
        )
        if any(item.id == request.id for item in alive):
            return
        count += 1
        if not swapper.adopt(request):
            request.state = "waiting"
        alive.append(request)

    def compute(request):
        if (
            request.state == "waiting"
            and request.table.missing(request.num_tokens, SIZE) <= bench.pool.num_available
        ):
            request.state = "running"
        left = request.num_tokens - request.num_computed
        if (
            request.state == "running"
            and left
            and request.table.missing(request.num_tokens, SIZE) <= bench.pool.num_available
        ):
            bench.write(request, int(generator.integers(1, left + 1)))

    def end(request):
        alive.remove(request)
        if request.state == "running" and request.num_computed == request.num_tokens:
            swapper.retire(request)
        else:
            swapper.forget(request)
        request.table.free(bench.pool)

    def preempt(request):
        if request.state in ("running", "swapping_in") and swapper.can_swap_out(request):
            swapper.start_out(request)

    for _ in range(150):
        if not alive or generator.random() < 0.15:
            admit()
        if alive:
            act = (
                compute,
                compute,
                compute,
                preempt,
                preempt,
                swapper.start_in,
                swapper.start_in,
                end,
            )[int(generator.integers(8))]
            act(alive[int(generator.integers(len(alive)))])
        if generator.random() < 0.6:
            bench.start()
        bench.copy_some()
        if bench.work and generator.random() < 0.4:
            name = list(bench.work)[int(generator.integers(len(bench.work)))]
            bench.fail(name) if generator.random() < 0.1 else bench.land(name)
        for request in alive:
            assert request.state == "running" or request.table.num_blocks == 0
            if request.state == "running":
                bench.check(request)
    bench.start()
    while bench.work:
        bench.land()
    for request in list(alive):
        if request.state == "swapped":
            away = swapper.start_in(request)
            bench.start()
            while bench.work:
                bench.land()
            if away:
                bench.check(request)
        end(request)
        bench.start()
        while bench.work:
            bench.land()
    assert bench.pool.num_available == bench.pool.num_blocks
    if not keep_turns:
        assert swapper.host.pool.num_in_use == 0
