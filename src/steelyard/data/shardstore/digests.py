"""Trees of hashes over keys and versions: two replicas find where they differ in few exchanges."""

import numpy as np

from steelyard.jit import njit

__all__ = ["DEPTH", "bucket_of", "differing", "digest_tree"]

DEPTH = 5
"""Levels below the root; each node has four children, so there are 1,024 buckets of keys."""
_FAN_OUT = 4


@njit()
def _spread(value):  # pragma: no cover
    """Hash a word so that every bit of it changes about half of the result's (splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit()
def bucket_of(keys):  # pragma: no cover
    """Return the bucket of each key, int64 [N], below 4^DEPTH; the same on every node."""
    found = np.empty(keys.size, np.int64)
    for number in range(keys.size):
        found[number] = _spread(keys[number]) % np.uint64(_FAN_OUT**DEPTH)
    return found


@njit()
def _leaves(keys, versions):  # pragma: no cover
    """Return the hash of each bucket: the sum of its keys' hashes, whatever their order."""
    found = np.zeros(_FAN_OUT**DEPTH, np.uint64)
    for number in range(keys.size):
        key = _spread(keys[number])
        found[key % np.uint64(found.size)] += _spread(key ^ _spread(versions[number]))
    return found


@njit()
def _above(children):  # pragma: no cover
    """Return the hashes of the next smaller level."""
    found = np.zeros(children.size // 4, np.uint64)
    for number in range(found.size):
        for child in range(4):
            found[number] = _spread(found[number] ^ children[4 * number + child])
    return found


def digest_tree(keys: np.ndarray, versions: np.ndarray) -> list[np.ndarray]:
    """Hash keys with their versions into a tree.

    Args:
        keys: uint64 [N], each once, in any order.
        versions: uint64 [N].

    Returns:
        Hashes by level, uint64 [4^level], from the root down to the buckets.

    Source: Merkle 1987; DeCandia et al. 2007, section 4.7 (anti-entropy between replicas).
    """
    levels = [_leaves(keys, versions)]
    while len(levels[-1]) > 1:
        levels.append(_above(levels[-1]))
    return levels[::-1]


def differing(mine: np.ndarray, theirs: np.ndarray, nodes: np.ndarray, step: int) -> np.ndarray:
    """Return the nodes to ask for next.

    Args:
        mine: hashes of one level, all of them.
        theirs: the other's hashes of `nodes`.
        nodes: numbers in that level.
        step: how many levels to go down; 0 names the nodes of this level.

    Returns:
        Numbers in the level `step` below.
    """
    found = nodes[mine[nodes] != theirs]
    width = _FAN_OUT**step
    return (found[:, None] * width + np.arange(width)).ravel()
