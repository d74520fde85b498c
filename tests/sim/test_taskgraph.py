from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.sim import taskgraph
from steelyard.sim.step import simulate
from steelyard.sim.taskgraph import Buffer, GraphTask, StepOverlap, TaskGraph

ranks = st.integers(1, 4)
rounds = st.integers(1, 3)
overlaps = st.builds(StepOverlap, pipeline=st.booleans(), data=st.booleans(), loader=st.booleans())


@st.composite
def schedules(draw):
    num_ranks = draw(ranks)
    kind = draw(st.sampled_from(["gpipe", "one_forward_one_backward", "zero_bubble", "chunks"]))
    if kind == "chunks":
        return taskgraph.interleaved(num_ranks, num_ranks * draw(rounds), draw(rounds))
    return getattr(taskgraph, kind)(num_ranks, draw(st.integers(1, 7)))


@given(schedules(), overlaps, st.booleans())
def test_every_schedule_runs_all_passes_once_and_its_graph_is_sound(schedule, overlap, data):
    for rank, passes in enumerate(schedule.passes):
        assert len(set(passes)) == len(passes)
        assert {item.stage for item in passes} == set(
            range(rank, schedule.num_stages, schedule.num_ranks)
        )
        forward = sum(item.op == "forward" for item in passes)
        assert forward == schedule.num_chunks * schedule.num_micro_batches
    graph = taskgraph.pipeline_graph(schedule, overlap=overlap, data_parallel=data)
    assert taskgraph.violations(graph) == []
    assert sum(map(len, map(graph.of_device, range(graph.num_devices)))) == len(graph.tasks)


def work(graph, forward=1.0, backward=2.0, half=1.0):
    seconds = {"forward": forward, "backward": backward}
    seconds |= {"backward_input": half, "backward_weight": half}
    return [seconds.get(task.op, 0.0) for task in graph.tasks]


@given(ranks, st.integers(1, 8), st.sampled_from(["gpipe", "one_forward_one_backward"]))
def test_bubble_is_the_closed_form(num_ranks, count, name):
    graph = taskgraph.pipeline_graph(getattr(taskgraph, name)(num_ranks, count))
    timeline = simulate(graph, work(graph))
    bubble = (num_ranks - 1) / (count + num_ranks - 1)
    assert timeline.bubble_fraction() == pytest.approx(bubble)


@given(ranks, st.integers(1, 4), st.integers(1, 4))
def test_interleaved_bubble_is_the_closed_form(num_ranks, groups, chunks):
    count = groups * num_ranks
    graph = taskgraph.pipeline_graph(taskgraph.interleaved(num_ranks, count, chunks))
    timeline = simulate(graph, work(graph))
    bubble = (num_ranks - 1) / (chunks * count + num_ranks - 1)
    assert timeline.bubble_fraction() == pytest.approx(bubble)


@given(ranks, st.integers(0, 6))
def test_zero_bubble_takes_a_third_of_the_bubble_and_the_memory_of_1f1b(num_ranks, more):
    count = 2 * num_ranks + more
    graph = taskgraph.pipeline_graph(taskgraph.zero_bubble(num_ranks, count))
    timeline = simulate(graph, work(graph))
    assert timeline.time_s == pytest.approx(3 * count + num_ranks - 1)
    held = timeline.peak_bytes(lambda buffer: float(buffer.kind == "activation"))
    assert (held <= num_ranks).all()


def test_activations_in_flight_are_those_of_the_papers():
    count, num_ranks = 8, 4

    def peak(schedule):
        graph = taskgraph.pipeline_graph(schedule)
        return simulate(graph, work(graph)).peak_bytes(lambda _: 1.0).tolist()

    assert peak(taskgraph.gpipe(num_ranks, count)) == [count] * num_ranks
    assert peak(taskgraph.one_forward_one_backward(num_ranks, count)) == [4, 3, 2, 1]
    # Narayanan et al. 2021: p (v - 1) + 2 (p - r - 1) + 1 chunks, each a v-th of a stage.
    found = peak(taskgraph.interleaved(num_ranks, count, 2))
    assert found == [num_ranks + 2 * (num_ranks - rank - 1) + 1 for rank in range(num_ranks)]


def send(device, peer, tag, deps=()):
    return GraphTask(
        op="send", kind="send", device=device, stream="out", peer=peer, tag=tag, deps=deps
    )


def test_all_violations_are_told_at_once():
    kept = Buffer("activation", 0, 0)
    circle = GraphTask(op="a", kind="compute", device=0, stream="compute", deps=(2,))
    tasks = (
        replace(circle, allocates=(kept,)),
        send(0, 1, "lost"),
        replace(circle, op="b", deps=(0,), stream="other"),
        replace(circle, op="c", deps=(), device=1, frees=(kept,)),
    )
    with pytest.raises(ConfigError) as caught:
        taskgraph.check(TaskGraph(tasks, 2))
    text = str(caught.value)
    for words in ("1 sends and 0 receives", "wait for one another", "never freed", "allocates"):
        assert words in text
    assert len(caught.value.parts) == 4


def test_a_deadlock_names_the_circle_and_not_what_waits_behind_it():
    def task(op, deps):
        return GraphTask(op=op, kind="compute", device=0, stream=op, deps=deps)

    graph = TaskGraph((task("one", (1,)), task("two", (0,)), task("behind", (1,))), 1)
    (text,) = taskgraph.violations(graph)
    assert "one" in text
    assert "behind" not in text


def test_dependencies_and_devices_that_do_not_exist_are_refused():
    task = GraphTask(op="a", kind="compute", device=3, stream="compute", deps=(7,))
    assert len(taskgraph.violations(TaskGraph((task,), 1))) == 2


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (2, 3, 2), (1, 1, 0)])
def test_wrong_numbers_are_refused(numbers):
    with pytest.raises(ConfigError):
        taskgraph.interleaved(*numbers)
