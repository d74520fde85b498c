"""The shard map as a picture: who writes and who holds which shard, moment by moment."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from steelyard.data.shardstore.shardmap import ShardMap
from steelyard.runs import layers

__all__ = ["draw_maps"]

_ROLES = ("writes", "holds", "catches up", "keeps a fragment")


def _role(shard: Any, name: str) -> str:
    """Return what a node does for a shard, or an empty string."""
    if shard.replicas[:1] == (name,):
        return _ROLES[0]
    if name in shard.replicas:
        return _ROLES[1]
    if name in shard.learners:
        return _ROLES[2]
    return _ROLES[3] if name in shard.fragments else ""


def draw_maps(
    moments: Sequence[tuple[str, ShardMap]], title: str = "Shards by node"
) -> dict[str, Any]:
    """Draw maps under one another, nodes by shards.

    Args:
        moments: what each map shows, and the map.
        title: heading.

    Returns:
        Vega-Lite spec.
    """
    # Of all moments: a node that is gone keeps its row, and is seen to be empty.
    nodes = sorted({name for _, shard_map in moments for name in shard_map.addresses})
    panels = [_panel(words, shard_map, nodes) for words, shard_map in moments]
    return layers.finish(alt.vconcat(*panels).properties(title=title))


def _panel(words: str, shard_map: ShardMap, nodes: list[str]) -> Any:
    """Draw one map."""
    rows = [
        {"shard": number, "node": name, "role": _role(shard, name)}
        for number, shard in enumerate(shard_map.shards)
        for name in nodes
        if _role(shard, name)
    ]
    x = alt.X("shard:O", title="Shard, by its keys", axis=alt.Axis(labelOverlap=True, labelAngle=0))
    y = alt.Y("node:N", title=None, scale=alt.Scale(domain=nodes))
    color = alt.Color("role:N", title=None, scale=alt.Scale(domain=list(_ROLES)))
    marks = alt.Chart(layers.values(rows)).mark_rect(stroke="white", strokeWidth=1)
    return marks.encode(x=x, y=y, color=color).properties(
        width=layers.PLOT_WIDTH, height=22 * len(nodes), title=words
    )
