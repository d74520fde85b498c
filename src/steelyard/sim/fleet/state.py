"""What the compiled loop of a fleet works on, as tables of records."""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCKS",
    "BOTH",
    "CHUNKS",
    "DECODE",
    "FEWEST",
    "GROUPS",
    "JOBS",
    "LANES",
    "LONGEST",
    "NONE",
    "ONE",
    "PLACES",
    "PREEMPTED",
    "PREFILL",
    "RANKED",
    "REPLICAS",
    "RUNNING",
    "STEPS",
    "ZERO",
    "FleetState",
]

NONE = -1
ZERO, ONE = cast("tuple[int, int]", (np.int64(0), np.int64(1)))
"""Arguments of compiled functions: a number written out is a type of its own to numba, for which
the callee and all that it calls would be compiled once more."""
BOTH, PREFILL, DECODE = range(3)
"""What the replicas of a group do."""
ROTATION, FEWEST, LONGEST = range(3)
"""How a group's replica is chosen: in turn, the one with the fewest requests, or the one that holds
most of the prompt."""

JOBS = np.dtype(
    [
        ("arrival_s", "f8"),
        ("first_s", "f8"),
        ("last_s", "f8"),
        ("land_s", "f8"),  # end of the transfer of its keys and values
        ("input", "i8"),
        ("output", "i8"),
        ("computed", "i8"),  # leading tokens whose keys and values are in its lane
        ("made", "i8"),  # output tokens so far
        ("blocks", "i8"),  # held in the lane that runs it
        ("held", "i8"),  # held where its prompt ran, until they are pulled
        ("order", "i8"),  # rank of arrival in its lane
        ("given", "i8"),  # priority that it came with, from 0 up
        ("rank", "i8"),  # the same where it counts, else 0: the smallest goes first
        ("content", "i8"),  # its first row of `contents`
        ("full", "i8"),  # its rows there, full blocks of its prompt and output
        ("start", "i8"),  # computed tokens before the step
        ("cached", "i8"),  # prompt tokens found when it was last admitted for its prompt
        ("mark", "i8"),  # 0 not in the step, 1 in it, 2 in it and gets a token
        ("after", "i8"),  # next in the queue it stands in
        ("lane", "i8"),
        ("first", "i8"),  # replica that ran its prompt
        ("second", "i8"),  # replica that decoded it; NONE where that is the same
        ("preempted", "i8"),
    ]
)
LANES = np.dtype(
    [
        ("free", "i8"),  # blocks that hold nothing
        ("idle", "i8"),  # known blocks that nobody holds
        ("oldest", "i8"),  # of these, the one that was left first
        ("newest", "i8"),
        ("running", "i8"),  # requests in its row of `running`
        ("stack", "i8"),  # preempted ones in its row of `stack`
        ("head", "i8"),  # queue of requests that never ran, by rank and order
        ("chunks", "i8"),  # requests of the step in its row of `chunks`
        ("pull_head", "i8"),  # queue of requests whose prompts ran elsewhere
        ("pull_tail", "i8"),
        ("landing", "i8"),  # requests whose keys and values are on their way
        ("load", "i8"),
        ("orders", "i8"),
        ("busy", "i8"),
        ("end_s", "f8"),
    ]
)
REPLICAS = np.dtype(
    [
        ("group", "i8"),
        ("lane", "i8"),  # its first lane
        ("load", "i8"),  # requests it was sent and has not finished with
        ("latest", "i8"),  # lane that planned last
        ("land_head", "i8"),  # transfers into it, in the order in which they end
        ("land_tail", "i8"),
        ("fly_head", "i8"),  # prompts in its pipeline, in the order in which they end
        ("fly_tail", "i8"),
        ("touched", "i8"),
        ("link_s", "f8"),  # when its link is free
        ("next_s", "f8"),
        ("open_s", "f8"),  # when it takes its first request
        ("close_s", "f8"),  # when it takes no more
    ]
)
GROUPS = np.dtype(
    [
        ("role", "i8"),
        ("count", "i8"),
        ("replica", "i8"),  # its first replica
        ("stages", "i8"),
        ("lanes", "i8"),
        ("blocks", "i8"),  # of a lane
        ("size", "i8"),  # tokens of a block
        ("budget", "i8"),
        ("most", "i8"),  # sequences of a lane at once
        ("watermark", "i8"),
        ("whole", "i8"),
        ("caching", "i8"),
        ("ranked", "i8"),
        ("rule", "i8"),
        ("slack", "i8"),
        ("turn", "i8"),
        ("large", "f8"),
        ("latency_s", "f8"),
        ("token_s", "f8"),
    ]
)
RUNNING, PREEMPTED, CHUNKS, RANKED = range(4)
"""Lists of each lane: requests that run, by order; preempted ones, the first to come back last;
those of the step as they joined it; running ones, the first to run first, while a step is planned.
"""
BLOCKS = np.dtype(
    [
        ("content", "i8"),  # contents that several requests share come first
        ("own", "i8"),  # whether the request's table has the known block of its content
    ]
)
PLACES = np.dtype(
    [
        ("known", "i4"),  # whether a content can be found in a lane
        ("users", "i4"),  # tables that hold it
        ("older", "i4"),  # place of the content that was left before, while nobody holds it
        ("newer", "i4"),
    ]
)
STEPS = np.dtype(
    [
        ("replica", "i8"),
        ("lane", "i8"),
        ("start_s", "f8"),
        ("end_s", "f8"),
        ("prompt_tokens", "i8"),
        ("decodes", "i8"),
    ]
)
"""One row per step, in the order of their starts."""

Records = Any
"""Rows of a table; the compiled loop reads and writes their fields by name."""


class FleetState(NamedTuple):
    """Tables of the loop.

    Attributes:
        jobs: `JOBS`, one per request by arrival.
        lanes: `LANES`, one per micro-batch of each replica.
        replicas: `REPLICAS`.
        groups: `GROUPS`: those that take arrivals, then those that take prompts that ran.
        tables: step times of each group, float64 [groups, phases, features].
        lists: int64 [4, lanes, most], those of `RUNNING` and so on.
        tails: last request of each rank in the queue of each lane, int64 [lanes, ranks].
        blocks: `BLOCKS`, the full blocks of each request, [groups, blocks].
        places: `PLACES`, one per content in each lane where it may lie.
        stage_s: when each stage of each replica is free, float64 [replicas, stages].
        features: what the step that is planned holds, float64 [7].
        steps: `STEPS`, as many as are kept.
        counts: steps so far, requests finished, preemptions; contents that several requests share,
            and others; int64 [5].
    """

    jobs: Records
    lanes: Records
    replicas: Records
    groups: Records
    tables: NDArray[np.float64]
    lists: NDArray[np.int64]
    tails: NDArray[np.int64]
    blocks: Records
    places: Records
    stage_s: NDArray[np.float64]
    features: NDArray[np.float64]
    steps: Records
    counts: NDArray[np.int64]
