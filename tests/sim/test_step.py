import json
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import catalog
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError
from steelyard.runs.report import Chart, Report, Section
from steelyard.runs.theme import SERIES
from steelyard.sim import taskgraph
from steelyard.sim.step import StageTimes, chrome_trace, lanes_chart, simulate, write_chrome_trace
from steelyard.sim.step.layers import Segment, layer_time_s, transposed
from steelyard.sim.step.longest_path import longest_path, replica_times
from steelyard.sim.step.training import TrainingStep
from steelyard.sim.taskgraph import GraphTask, StepOverlap, TaskGraph

SLOW = StepOverlap(pipeline=False, data=False, loader=False)


@st.composite
def graphs(draw):
    """Random sound graphs: dependencies point back, collectives meet, transfers have two ends."""
    devices = draw(st.integers(1, 3))
    tasks, count = [], 0
    for number in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["compute", "send", "collective"]))
        deps = draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=2)) if count else []
        base = GraphTask(op=kind, kind=kind, device=0, stream="compute", deps=tuple(deps))
        device = draw(st.integers(0, devices - 1))
        stream = draw(st.sampled_from(["compute", "other"]))
        if kind == "collective":
            axis = draw(st.sampled_from(["data", "pipeline"]))
            members = range(devices) if axis == "pipeline" else [device]
            tasks += [replace(base, device=item, axis=axis, tag=str(number)) for item in members]
        else:
            tasks.append(replace(base, device=device, stream=stream, tag=str(number)))
        if kind == "send":
            peer = draw(st.integers(0, devices - 1))
            tasks[-1] = replace(tasks[-1], peer=peer)
            recv = replace(base, op="recv", kind="recv", device=peer, peer=device, tag=str(number))
            tasks.append(replace(recv, deps=(len(tasks) - 1,)))
        count = len(tasks)
    seconds = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    return TaskGraph(tuple(tasks), devices), [float(item) for item in seconds]


@given(graphs())
@settings(max_examples=150)
def test_longest_path_equals_the_event_loop(drawn):
    graph, seconds = drawn
    events, path = simulate(graph, seconds), longest_path(graph, seconds)
    np.testing.assert_array_equal(events.start_s, path.start_s)
    np.testing.assert_array_equal(events.finish_s, path.finish_s)


@given(graphs(), st.integers(1, 3), st.data())
def test_replicas_equal_one_graph_that_holds_them_all(drawn, replicas, data):
    graph, seconds = drawn
    one = st.sampled_from([1.0, 2.0])
    slow = data.draw(st.lists(one, min_size=replicas, max_size=replicas))
    durations = np.array(seconds)[:, None] * np.array(slow)
    copies = [
        replace(
            task,
            device=task.device + copy * graph.num_devices,
            peer=task.peer + copy * graph.num_devices,
            deps=tuple(dep + copy * len(graph.tasks) for dep in task.deps),
            # Collectives of the data axis meet all copies, the others only their own.
            axis="pipeline" if task.axis else "",
            tag=f"all {task.tag}" if task.axis == "data" else f"{copy} {task.tag}",
        )
        for copy in range(replicas)
        for task in graph.tasks
    ]
    whole = TaskGraph(tuple(copies), graph.num_devices * replicas)
    expected = simulate(whole, durations.T.ravel())
    _, finish = replica_times(graph, durations)
    np.testing.assert_array_equal(finish.T.ravel(), expected.finish_s)


def test_a_shared_link_serves_who_is_ready_first_and_has_no_longest_path():
    def task(op, device, **how):
        return GraphTask(op=op, kind="compute", device=device, stream="compute", **how)

    tasks = (
        task("late", 0),
        task("moved", 0, deps=(0,), link="nic"),
        task("moved", 1, link="nic"),
        task("after", 1, deps=(2,)),
    )
    graph = TaskGraph(tasks, 2)
    timeline = simulate(graph, [2.0, 3.0, 4.0, 1.0])
    assert timeline.start_s.tolist() == [0, 4, 0, 4]
    with pytest.raises(ConfigError, match="shared by 2 streams"):
        longest_path(graph, [2.0, 3.0, 4.0, 1.0])


def test_blocking_transfers_cost_more_than_those_beside_the_kernels():
    times = replace(StageTimes.equal(4, forward_s=1.0, backward_s=2.0), transfer_s=0.25)
    spent = {}
    for blocked in (True, False):
        graph = taskgraph.pipeline_graph(
            taskgraph.one_forward_one_backward(4, 8), overlap=SLOW if blocked else None
        )
        spent[blocked] = simulate(graph, times.durations_s(graph)).time_s
    # Beside the kernels a transfer still delays those who wait for it while the pipeline fills.
    assert 33 < spent[False] < spent[True]


def test_the_critical_path_has_no_gaps_and_ends_the_step():
    graph = taskgraph.pipeline_graph(taskgraph.interleaved(4, 8, 2), data_parallel=True)
    times = replace(
        StageTimes.equal(8, forward_s=1.0, backward_s=2.0),
        transfer_s=0.1,
        gather_s=np.full(8, 0.3),
        scatter_s=np.full(8, 0.3),
    )
    timeline = simulate(graph, times.durations_s(graph))
    path = timeline.critical_path()
    spent = timeline.finish_s[path] - timeline.start_s[path]
    assert spent.sum() == pytest.approx(timeline.time_s)
    assert timeline.start_s[path[0]] == 0


def test_chunks_hide_the_traffic_of_a_layer_up_to_the_first_and_last():
    segments = [
        Segment(kind="gather", compute_s=4.0, transfer_s=2.0),
        Segment(kind="plain", compute_s=1.0),
        Segment(kind="scatter", compute_s=4.0, transfer_s=2.0),
    ]
    assert layer_time_s(segments) == 13
    assert layer_time_s(segments, num_chunks=4) == pytest.approx(9 + 2 * 0.5)
    assert layer_time_s(segments, num_chunks=4, contention=0.25) == pytest.approx(11 + 2 * 0.5)
    back = transposed(segments, [2.0, 1.0, 2.0])
    assert [item.kind for item in back] == ["gather", "plain", "scatter"]
    assert layer_time_s(back) == 21
    with pytest.raises(ConfigError):
        layer_time_s(segments, num_chunks=0)


def megascale(**how):
    arch = catalog.architecture_by_name("gpt3-175b")
    machine = Machine.from_accelerator(catalog.accelerator("A100-SXM4-80GB"))
    machine = replace(machine, accelerators_per_node=8, injection_bytes_per_s=200e9)
    common = {"sequence_length": 2048, "tensor": 8, "pipeline": 8, "num_chunks": 6}
    step = {"arch": arch, "machine": machine, "data": 192, "num_micro_batches": 32}
    return TrainingStep(**(common | step | how))


def test_every_overlap_shortens_the_step_of_12288_accelerators():
    steps = [
        megascale(overlap=SLOW),
        megascale(overlap=SLOW, parallel_block=True),
        megascale(overlap=SLOW, parallel_block=True, tensor_chunks=4),
        megascale(overlap=replace(SLOW, pipeline=True), parallel_block=True, tensor_chunks=4),
        megascale(overlap=StepOverlap(loader=False), parallel_block=True, tensor_chunks=4),
    ]
    assert steps[0].num_accelerators == 12288
    seconds = [replace(step, load_s=0.1).simulate().time_s for step in steps]
    seconds.append(replace(steps[-1], overlap=StepOverlap(), load_s=0.1).simulate().time_s)
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == len(seconds)


def test_one_slow_rank_holds_all_replicas_up():
    step = megascale(num_chunks=2, data=16)
    even = np.ones((16, 8))
    assert step.straggling_s(even) == pytest.approx(step.simulate().time_s)
    slow = even.copy()
    slow[3, 7] = 1.1  # the last rank has the head and sets the pace
    assert 1.05 < step.straggling_s(slow) / step.straggling_s(even) < 1.1 + 1e-9


def test_a_step_of_one_accelerator_is_its_kernels():
    arch = catalog.architecture_by_name("gpt2")
    machine = Machine.from_accelerator(catalog.accelerator("A100-SXM4-80GB"))
    step = TrainingStep(arch=arch, machine=machine, sequence_length=1024, num_micro_batches=3)
    times = step.times()
    once = times.forward_s + times.backward_input_s + times.backward_weight_s
    assert step.simulate().time_s == pytest.approx(3 * once[0] + times.update_s)
    from steelyard.cost import training_step

    whole = training_step(
        arch, machine=machine, micro_batch=1, sequence_length=1024, accumulation=3
    )
    assert step.simulate().time_s == pytest.approx(whole.time_s, rel=0.02)
    again = replace(step, recompute=True).simulate().time_s
    assert 1.15 < again / step.simulate().time_s < 1.35


@pytest.mark.parametrize(
    "how", [{"num_chunks": 5}, {"schedule": "gpipe"}, {"schedule": "none", "num_chunks": 1}]
)
def test_impossible_steps_are_refused(how):
    with pytest.raises(ConfigError):
        megascale(**how)


def test_durations_are_checked():
    graph = taskgraph.pipeline_graph(taskgraph.gpipe(2, 2))
    for wrong in ([1.0], [-1.0] * len(graph.tasks), [np.nan] * len(graph.tasks)):
        with pytest.raises(ConfigError):
            simulate(graph, wrong)
    with pytest.raises(ConfigError, match="2 stages"):
        StageTimes.equal(1, forward_s=1.0, backward_s=1.0).durations_s(graph)
    odd = TaskGraph((GraphTask(op="odd", kind="compute", device=0, stream="compute"),), 1)
    with pytest.raises(ConfigError, match="odd"):
        StageTimes.equal(1, forward_s=1.0, backward_s=1.0).durations_s(odd)


def test_a_timeline_is_written_for_chrome_and_drawn(tmp_path):
    graph = taskgraph.pipeline_graph(taskgraph.one_forward_one_backward(2, 2))
    times = replace(StageTimes.equal(2, forward_s=1e-3, backward_s=2e-3), transfer_s=1e-4)
    timeline = simulate(graph, times.durations_s(graph))
    write_chrome_trace(timeline, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert events == chrome_trace(timeline)["traceEvents"]
    whole = [event for event in events if event["ph"] == "X"]
    assert len(whole) == len(graph.tasks)
    assert max(event["ts"] + event["dur"] for event in whole) == pytest.approx(
        timeline.time_s * 1e6
    )
    assert {event["id"] for event in events if event["ph"] == "s"} == {
        event["id"] for event in events if event["ph"] == "f"
    }
    Report("step", "", [Section("", [Chart(lanes_chart(timeline))])]).write_html(
        tmp_path / "step.html"
    )
    assert "device 1" in (tmp_path / "step.html").read_text()


def test_pictures_of_blocking_steps_have_a_colour_for_each_operation():
    graph = taskgraph.pipeline_graph(taskgraph.zero_bubble(2, 4), overlap=SLOW, data_parallel=True)
    times = replace(
        StageTimes.equal(2, forward_s=1e-3, backward_s=2e-3),
        transfer_s=1e-4,
        gather_s=np.full(2, 1e-3),
        scatter_s=np.full(2, 1e-3),
        update_s=1e-4,
        load_s=1e-4,
    )
    timeline = simulate(graph, times.durations_s(graph))
    rows = [row for data in lanes_chart(timeline)["datasets"].values() for row in data]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    assert groups[0] == "forward"
    assert "waits for transfers" in groups
    assert len(groups) <= len(SERIES)
    assert next(row["lane"] for row in rows) == "device 0"


@pytest.mark.slow
def test_a_step_of_12288_accelerators_with_stragglers_takes_less_than_10_s():
    step = megascale()
    start = time.perf_counter()
    step.straggling_s(np.random.default_rng(0).uniform(1, 1.1, (192, 8)))
    assert time.perf_counter() - start < 10
