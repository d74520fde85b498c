"""A step's timeline for people: Chrome's trace format, and a picture of who does what when."""

from pathlib import Path
from typing import Any

from steelyard.files import write_json
from steelyard.sim.step.timeline import StepTimeline
from steelyard.sim.taskgraph.tasks import GraphTask

__all__ = ["chrome_trace", "lanes_chart", "write_chrome_trace"]

_MICROSECONDS = 1e6
_FIRST = ("forward", "backward", "backward_input", "backward_weight")
"""Operations whose colours should be the same in every picture."""


def chrome_trace(timeline: StepTimeline) -> dict[str, Any]:
    """Return a timeline in Chrome's trace event format: a process per device, a thread per stream.

    Transfers carry arrows from the send to the receive. chrome://tracing and ui.perfetto.dev open
    it.

    Args:
        timeline: timeline of a step.

    Returns:
        Plain values for JSON; times in microseconds.

    Source: Trace Event Format, complete events (ph X), flows (s, f) and metadata (M).
    """
    graph = timeline.graph
    threads = {key: number for number, key in enumerate(sorted(graph.streams))}
    events: list[dict[str, Any]] = []
    for (device, stream), thread in threads.items():
        lane = {"ph": "M", "pid": device, "tid": thread}
        events.append(lane | {"name": "thread_name", "args": {"name": stream}})
        events.append(lane | {"name": "process_name", "args": {"name": f"device {device}"}})
    for place, task in enumerate(graph.tasks):
        start_us = float(timeline.start_s[place]) * _MICROSECONDS
        end_us = float(timeline.finish_s[place]) * _MICROSECONDS
        lane = {"pid": task.device, "tid": threads[task.device, task.stream], "name": task.op}
        known = {"stage": task.stage, "micro_batch": task.micro_batch}
        args = {name: value for name, value in known.items() if value >= 0}
        events.append(
            lane
            | {"ph": "X", "cat": task.kind, "ts": start_us, "dur": end_us - start_us, "args": args}
        )
        if task.kind in ("send", "recv"):
            flow = {"ph": "s", "ts": start_us} if task.kind == "send" else {"ph": "f", "ts": end_us}
            events.append(lane | flow | {"cat": "transfer", "name": task.tag, "id": task.tag})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_chrome_trace(timeline: StepTimeline, path: Path) -> None:
    """Write a timeline as a file that chrome://tracing and ui.perfetto.dev open, atomically."""
    write_json(path, chrome_trace(timeline))


def lanes_chart(
    timeline: StepTimeline, title: str = "One step, device by device"
) -> dict[str, Any]:
    """Draw the compute stream of each device, a bar per task coloured by operation.

    Args:
        timeline: timeline of a step.
        title: heading of the chart.

    Returns:
        Vega-Lite spec for `runs.report.Chart`.
    """
    from steelyard.runs.charts import lanes

    shown = [
        (place, task)
        for place, task in enumerate(timeline.graph.tasks)
        if task.stream == "compute" and timeline.finish_s[place] > timeline.start_s[place]
    ]
    # Colours follow the order in which operations first come, and lanes that of the devices.
    shown.sort(key=lambda item: _FIRST.index(item[1].op) if item[1].op in _FIRST else len(_FIRST))
    return lanes(
        [f"device {task.device}" for _, task in shown],
        [float(timeline.start_s[place]) for place, _ in shown],
        [float(timeline.finish_s[place]) for place, _ in shown],
        groups=[_operation(task) for _, task in shown],
        title=title,
    )


def _operation(task: GraphTask) -> str:
    """Return what a bar shows, in words."""
    # Sends and gathers stand among kernels only where these wait for them. They share a colour:
    # with one for each of them a picture would need more than there are.
    return "waits for transfers" if task.kind != "compute" else task.op.replace("_", " ")
