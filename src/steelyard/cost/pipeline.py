"""Stages of a pipeline: which one is the busiest, and how long the others wait for it."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BusiestStage", "busiest_stage", "filling_share"]

Array = NDArray[Any]


class BusiestStage(NamedTuple):
    """What stands on the stage that all others wait for; arrays over layouts.

    Attributes:
        layers: layers on it.
        embedding: 1 where it holds the embedding, else 0.
        head: 1 where it holds the head, else 0.
    """

    layers: Array
    embedding: Array
    head: Array


def busiest_stage(
    num_layers: float, pipeline: Array, layer_s: Array, embedding_s: Array, head_s: Array
) -> BusiestStage:
    """Find the busiest stage of layers that are spread as evenly as they go.

    Where the layers do not divide evenly, the last stage and then the first get one less, since
    these hold head and embedding.

    Args:
        num_layers: layers of the model.
        pipeline: stages.
        layer_s: time of one layer's passes over a micro-batch.
        embedding_s: time of the embedding's passes.
        head_s: time of the head's passes, loss included.

    Returns:
        The stage.
    """
    most = np.ceil(num_layers / pipeline)
    spare = most * pipeline - num_layers
    last = most - (spare >= 1)
    alone = pipeline == 1
    at_end = (last * layer_s + head_s > most * layer_s) | alone
    at_start = ~at_end & (spare < 2) & (embedding_s > 0)
    return BusiestStage(
        np.where(at_end, last, most), (alone | at_start).astype(float), at_end.astype(float)
    )


def filling_share(
    schedule: Array, virtual_stages: Array, forward_s: Array, backward_s: Array, weight_s: Array
) -> Array:
    """Return which share of the time that other stages take for a micro-batch is idle per step.

    Args:
        schedule: index into `SCHEDULES`.
        virtual_stages: chunks of layers per accelerator.
        forward_s: time of the forward pass.
        backward_s: time of the whole backward pass.
        weight_s: part of the backward pass that makes gradients of weights.

    Returns:
        1 for one forward one backward and for all forward then all backward, 1/v for v chunks,
        less where gradients of weights wait until the bubble.

    Source: Narayanan et al. 2021, section 2.2 (arXiv 2104.04473); Qi et al. 2023, table 2 (arXiv
        2401.10241, ZB-H1).
    """
    idle = np.maximum(forward_s + backward_s - 2 * weight_s, 0.0) / (forward_s + backward_s)
    return np.where(schedule == 2, idle, 1.0) / virtual_stages
