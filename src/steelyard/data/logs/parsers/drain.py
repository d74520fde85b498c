"""Drain: a tree of fixed depth leads a line to a few templates; the most similar one takes it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from steelyard.data.logs.parsers.parsed import WILDCARD, ParsedLines, masked, numbered

__all__ = ["DrainParser"]


@dataclass(slots=True, eq=False)
class _DrainCluster:
    """Lines of one template."""

    template: list[str]


@dataclass(slots=True)
class _DrainNode:
    """A node of the tree; leaves hold clusters."""

    children: "dict[str, _DrainNode]" = field(default_factory=dict)
    clusters: list[_DrainCluster] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class DrainParser:
    """Drain as its authors' programs run it, for comparison.

    Templates depend on the order of lines: a later line may generalize what earlier ones joined.

    Attributes:
        similarity: least share of equal tokens for a line to join a template (st).
        depth: depth of the tree, with its root and leaves; 4 looks at two tokens.
        max_children: most children of a node; further tokens share the child of the wildcard.
        masks: expressions of variables.

    Source: He et al. 2017 (ICWS), algorithm of section III; order of ties as in the logparser
    benchmark (arXiv 1811.03509).
    """

    similarity: float = 0.4
    depth: int = 4
    max_children: int = 100
    masks: Sequence[re.Pattern[str]] = ()

    def parse(self, contents: Sequence[str]) -> ParsedLines:
        """Return the template of each line.

        Args:
            contents: lines without their headers.

        Returns:
            Groups of lines with one template text.
        """
        roots: dict[int, _DrainNode] = {}
        owners: list[_DrainCluster] = []
        for content in contents:
            tokens = masked(content, self.masks).split()
            root = roots.setdefault(len(tokens), _DrainNode())
            found = self._best(self._leaf(root, tokens), tokens)
            if found is None:
                found = _DrainCluster(tokens)
                self._insert(root, found)
            else:
                found.template = [
                    ours if ours == token else WILDCARD
                    for ours, token in zip(found.template, tokens, strict=True)
                ]
            owners.append(found)
        texts = [" ".join(owner.template) for owner in owners]
        # Groups are texts in the published tables: two clusters of one text are one.
        return numbered(texts, texts)

    @property
    def _levels(self) -> int:
        return self.depth - 2

    def _leaf(self, node: _DrainNode, tokens: list[str]) -> _DrainNode | None:
        """Return the node that tokens lead to."""
        for token in tokens[: max(self._levels - 1, 0)]:
            below = node.children.get(token) or node.children.get(WILDCARD)
            if below is None:
                return None
            node = below
        return node

    def _best(self, leaf: _DrainNode | None, tokens: list[str]) -> _DrainCluster | None:
        """Return the most similar cluster; of equals the one with most wildcards."""
        best, best_key = None, (-1.0, -1)
        for cluster in leaf.clusters if leaf else ():
            wild = cluster.template.count(WILDCARD)
            pairs = zip(cluster.template, tokens, strict=True)
            equal = sum(ours == token and ours != WILDCARD for ours, token in pairs)
            key = (equal / len(tokens) if tokens else 1.0, wild)
            if key > best_key:
                best, best_key = cluster, key
        return best if best_key[0] >= self.similarity else None

    def _insert(self, node: _DrainNode, cluster: _DrainCluster) -> None:
        """Add a cluster, and the path to it."""
        # A line shorter than the path is kept in no leaf, as in the authors' program; its lines
        # meet again by their text.
        if len(cluster.template) < self._levels:
            return
        for token in cluster.template[: self._levels - 1]:
            node = self._below(node, token)
        node.clusters.append(cluster)

    def _below(self, node: _DrainNode, token: str) -> _DrainNode:
        """Return the child of a token, made where it may be."""
        if token in node.children:
            return node.children[token]
        has_digit = any(letter.isdigit() for letter in token)
        # The last free child is that of the wildcard.
        limit = self.max_children - (WILDCARD not in node.children)
        key = token if not has_digit and len(node.children) < limit else WILDCARD
        return node.children.setdefault(key, _DrainNode())
