"""Placement: where the copies of a shard go, by weighted rendezvous with bounded load."""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from steelyard.errors import ConfigError

__all__ = ["choose", "distribute", "rank"]


@lru_cache(1 << 18)
def _draw(shard: int, node: str) -> float:
    """Return a number in (0, 1) that a shard and a node always draw together."""
    digest = hashlib.blake2b(f"{shard} {node}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") + 0.5) / 2**64


def rank(shard: int, capacities: Mapping[str, float]) -> list[str]:
    """Order nodes for a shard: each is first for a share of shards as large as its capacity.

    Args:
        shard: number of the shard.
        capacities: weights by node; one of 0 gets nothing.

    Returns:
        Nodes, best first; adding or removing one leaves the order of the others as it was.

    Source: Thaler and Ravishankar 1998 (highest random weight); Schindelhauer and Schomaker 2005
        (weights by -w / ln h).
    """
    able = [name for name, weight in capacities.items() if weight > 0]
    return sorted(able, key=lambda name: (capacities[name] / math.log(_draw(shard, name)), name))


def choose(
    shard: int,
    weight: float,
    loads: Mapping[str, float],
    capacities: Mapping[str, float],
    *,
    eps: float,
    taken: Collection[str] = (),
    preferred: Sequence[str] = (),
    hosts: Mapping[str, str] | None = None,
) -> str | None:
    """Choose the node for one more copy of a shard.

    Args:
        shard: number of the shard.
        weight: its load.
        loads: load of every node that may be chosen.
        capacities: weights by node.
        eps: a node may carry so much more than its share of the load, `weight` included.
        taken: nodes that have a copy.
        preferred: nodes to take first where they have room, such as those with old rows.
        hosts: failure domain by node; copies go to different ones while there are some.

    Returns:
        The node; the one with the most room where the bound leaves none; None where every node
        has a copy.

    Source: Mirrokni, Thorup and Zadimoghaddam 2018 (consistent hashing with bounded loads).
    """
    free = {name: capacities[name] for name in loads if name not in taken}
    used = {hosts[name] for name in taken if name in hosts} if hosts else set()
    apart = {name: value for name, value in free.items() if not hosts or hosts[name] not in used}
    order = rank(shard, apart or free)
    if not order:
        return None
    order = [name for name in preferred if name in order] + order
    room = (1 + eps) * (sum(loads.values()) + weight) / sum(capacities[name] for name in loads)
    for name in order:
        if loads[name] + weight <= room * capacities[name]:
            return name
    return min(order, key=lambda name: ((loads[name] + weight) / capacities[name], name))


def distribute(
    weights: Mapping[int, float],
    replicas: Mapping[int, int],
    capacities: Mapping[str, float],
    *,
    eps: float,
    current: Mapping[int, tuple[str, ...]] | None = None,
    hosts: Mapping[str, str] | None = None,
) -> dict[int, tuple[str, ...]]:
    """Place all shards, moving no more of what stands than the bound asks.

    Copies on nodes that are left stay. Missing ones go where `choose` says. A node that has less
    than its share then takes the copies that rank it highest from the fullest ones.

    Args:
        weights: load of each shard, shared by its copies.
        replicas: wished copies; fewer where there are fewer nodes.
        capacities: weights by node.
        eps: bound, as of `choose`.
        current: where copies stand.
        hosts: failure domains.

    Returns:
        Nodes by shard.

    Raises:
        ConfigError: there is no node with a capacity above 0.
    """
    able = {name: weight for name, weight in capacities.items() if weight > 0}
    if not able:
        raise ConfigError("no node has a capacity above 0", hint="add a node")
    placed = {
        shard: [name for name in (current or {}).get(shard, ()) if name in able][: replicas[shard]]
        for shard in weights
    }
    part = {shard: weights[shard] / min(replicas[shard], len(able)) for shard in weights}
    loads = dict.fromkeys(able, 0.0)
    for shard, names in placed.items():
        for name in names:
            loads[name] += part[shard]
    for shard in sorted(weights, key=lambda item: (-part[item], item)):
        while len(placed[shard]) < min(replicas[shard], len(able)):
            name = choose(
                shard, part[shard], loads, able, eps=eps, taken=placed[shard], hosts=hosts
            )
            assert name is not None
            placed[shard].append(name)
            loads[name] += part[shard]
    _fill(placed, part, loads, able)
    return {shard: tuple(names) for shard, names in placed.items()}


def _fill(
    placed: dict[int, list[str]],
    part: Mapping[int, float],
    loads: dict[str, float],
    able: Mapping[str, float],
) -> None:
    """Move copies from nodes above their share to those that have nothing, up to their share."""
    share = sum(loads.values()) / sum(able.values())
    for name in sorted(item for item in able if loads[item] == 0):
        # Those shards come first that rank the new node first: a later one finds them there too.
        found = sorted(placed, key=lambda shard, name=name: _draw(shard, name), reverse=True)
        for shard in found:
            others = [item for item in placed[shard] if loads[item] > share * able[item]]
            fits = loads[name] + part[shard] <= share * able[name]
            if name in placed[shard] or not others or not fits or not part[shard]:
                continue
            giver = max(others, key=lambda item: loads[item] / able[item])
            placed[shard][placed[shard].index(giver)] = name
            loads[giver] -= part[shard]
            loads[name] += part[shard]
