"""Spell: a line joins the template with which it has the longest common subsequence."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from steelyard.data.logs.parsers.parsed import WILDCARD, ParsedLines, masked, numbered

__all__ = ["SpellParser"]

_SEPARATORS = re.compile(r"[\s=:,]")
_NEAR = 0.5


@dataclass(slots=True, eq=False)
class _SpellCluster:
    template: list[str]


@dataclass(slots=True)
class _SpellNode:
    """A node of the prefix tree, with the clusters that lead through it."""

    uses: int = 1
    cluster: _SpellCluster | None = None
    children: "dict[str, _SpellNode]" = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SpellParser:
    """Spell as the logparser benchmark runs it, for comparison; the order of lines matters.

    Attributes:
        tau: least length of the common subsequence over that of the line.
        masks: expressions of variables.

    Source: Du and Li 2016 (ICDM), section III; look-ups in the order of the logparser benchmark
    (arXiv 1811.03509).
    """

    tau: float = 0.5
    masks: Sequence[re.Pattern[str]] = ()

    def parse(self, contents: Sequence[str]) -> ParsedLines:
        """Return the template of each line.

        Args:
            contents: lines without their headers.

        Returns:
            Groups of lines with one template text.
        """
        root, clusters, owners = _SpellNode(), [], []
        for content in contents:
            tokens = [word for word in _SEPARATORS.split(masked(content, self.masks)) if word]
            constant = [word for word in tokens if word != WILDCARD]
            found = self._by_prefix(root, constant) or _by_words(clusters, constant)
            if found is None:
                found = self._by_subsequence(clusters, tokens)
                if found is None:
                    found = _SpellCluster(tokens)
                    clusters.append(found)
                    _insert(root, found)
                else:
                    _generalize(root, found, tokens)
            owners.append(found)
        texts = [" ".join(owner.template) for owner in owners]
        return numbered(texts, texts)

    def _by_prefix(self, node: _SpellNode, words: list[str]) -> _SpellCluster | None:
        """Return the cluster whose words come in the line, by the first path that leads to one."""
        place = 0
        while place < len(words):
            below = node.children.get(words[place])
            place += 1
            if below is None:
                continue
            if below.cluster is None:
                node = below
                continue
            constant = sum(word != WILDCARD for word in below.cluster.template)
            if constant >= self.tau * len(words):
                return below.cluster
        return None

    def _by_subsequence(
        self, clusters: list[_SpellCluster], tokens: list[str]
    ) -> _SpellCluster | None:
        """Return the cluster of the longest common subsequence; of equals that of fewest words."""
        words, best, longest = set(tokens), None, -1
        for cluster in clusters:
            if len(words & set(cluster.template)) < _NEAR * len(tokens):
                continue
            length = len(_common(tokens, cluster.template))
            is_shorter = best is not None and len(cluster.template) < len(best.template)
            if length > longest or (length == longest and is_shorter):
                best, longest = cluster, length
        return best if longest >= self.tau * len(tokens) else None


def _by_words(clusters: list[_SpellCluster], words: list[str]) -> _SpellCluster | None:
    """Return the first cluster of at least half the length whose words are all in the line."""
    present = {*words, WILDCARD}
    for cluster in clusters:
        if len(cluster.template) >= _NEAR * len(words) and present.issuperset(cluster.template):
            return cluster
    return None


def _common(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Return the longest common subsequence."""
    lengths = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, word in enumerate(left):
        for j, other in enumerate(right):
            longer = max(lengths[i + 1][j], lengths[i][j + 1])
            lengths[i + 1][j + 1] = lengths[i][j] + 1 if word == other else longer
    found, i, j = [], len(left), len(right)
    while i and j:
        if lengths[i][j] == lengths[i - 1][j]:
            i -= 1
        elif lengths[i][j] == lengths[i][j - 1]:
            j -= 1
        else:
            found.append(left[i - 1])
            i, j = i - 1, j - 1
    return found[::-1]


def _generalize(root: _SpellNode, cluster: _SpellCluster, tokens: list[str]) -> None:
    """Put wildcards where a line differs from a template."""
    common = _common(tokens, cluster.template)[::-1]
    if not common:
        _replace(root, cluster, [])
        return
    made, read = [], 0
    for token in cluster.template:
        read += 1
        if token == common[-1]:
            made.append(token)
            common.pop()
        else:
            made.append(WILDCARD)
        if not common:
            break
    if read < len(cluster.template):
        made.append(WILDCARD)
    _replace(root, cluster, made)


def _replace(root: _SpellNode, cluster: _SpellCluster, template: list[str]) -> None:
    if template == cluster.template:
        return
    node = root
    for word in (word for word in cluster.template if word != WILDCARD):
        below = node.children.get(word)
        if below is None:
            continue
        if below.uses == 1:
            del node.children[word]
            break
        below.uses -= 1
        node = below
    cluster.template = template
    _insert(root, cluster)


def _insert(root: _SpellNode, cluster: _SpellCluster) -> None:
    node = root
    for word in (word for word in cluster.template if word != WILDCARD):
        if word in node.children:
            node.children[word].uses += 1
        else:
            node.children[word] = _SpellNode()
        node = node.children[word]
    # Two clusters of equal words: the first one keeps the place.
    node.cluster = node.cluster or cluster
