"""What traffic beside the kernels costs them: it takes multiprocessors and memory bandwidth."""

import numpy as np

from steelyard.sim.step.timeline import Array
from steelyard.sim.taskgraph.tasks import TaskGraph

__all__ = ["traffic_beside_s"]


def traffic_beside_s(graph: TaskGraph, duration_s: Array) -> Array:
    """Charge traffic on streams of its own to the passes that run beside it.

    A transfer runs beside the passes around it, which are alike; it is charged to the one that made
    what is sent. Weights of a later chunk are gathered, and its gradients scattered, while other
    chunks compute. Those of each rank's first chunk have nothing beside them: nothing computes
    before they are gathered or after they are scattered.

    Args:
        graph: made by `taskgraph.pipeline_graph`.
        duration_s: [T] seconds of each task.

    Returns:
        [T] seconds of traffic beside each task, 0 for all but passes.
    """
    found = np.zeros(len(graph.tasks))
    for place, task in enumerate(graph.tasks):
        is_beside = task.stream != "compute" and task.stage >= graph.num_devices
        if task.kind == "send" and task.stream != "compute":
            found[task.deps[0]] += duration_s[place]
        elif task.op == "scatter" and is_beside:
            found[task.deps[0]] += duration_s[place]
        elif task.op == "forward" and task.stage >= graph.num_devices:
            gathers = [
                dep
                for dep in task.deps
                if graph.tasks[dep].op == "gather" and graph.tasks[dep].stream != "compute"
            ]
            # Only the first forward pass of a stage finds its weights on the way.
            if gathers and task.micro_batch == 0:
                found[place] += duration_s[gathers[0]]
    return found
