"""How good a parse is: groups of lines and texts of templates beside those of people."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError

__all__ = ["ParseScore", "plain_template", "score_parse"]

_NAMED = re.compile(r"<[^<>\s]{0,24}>")
_RUNS = re.compile(r"<\*>(?:\s*<\*>)+")


@dataclass(frozen=True, kw_only=True)
class ParseScore:
    """Figures of one parse, fractions from 0 to 1.

    Attributes:
        grouping_accuracy: GA, share of lines whose group is exactly that of the truth.
        group_f1: FGA, F1 of groups: 2 · right / (found + true).
        parsing_accuracy: PA, share of lines with exactly the true template.
        template_f1: FTA, F1 of groups that are right in lines and in text.
        groups: groups found.
        true_groups: groups of the truth.
    """

    grouping_accuracy: float
    group_f1: float
    parsing_accuracy: float
    template_f1: float
    groups: int
    true_groups: int


def plain_template(template: str) -> str:
    """Return a template as texts are compared.

    Args:
        template: template with wildcards such as `<*>` or `<NUM>`.

    Returns:
        It with every wildcard as `<*>`, runs of wildcards as one, and single blanks.
    """
    text = _RUNS.sub("<*>", _NAMED.sub("<*>", template))
    return " ".join(text.split())


def score_parse(
    found: Sequence[int] | NDArray[np.integer],
    templates: Sequence[str],
    truth: Sequence[str],
    true_templates: Sequence[str],
) -> ParseScore:
    """Compare a parse with the truth.

    Args:
        found: group of each line, an index into `templates`, [lines].
        templates: text by group.
        truth: name of the true group of each line, [lines].
        true_templates: true text of each line, [lines].

    Returns:
        The figures; all are 1 without lines.

    Raises:
        DataError: the two have other numbers of lines.

    Source: Zhu et al. 2019 (arXiv 1811.03509) for GA, Jiang et al. 2024 (arXiv 2308.10828), section
    3.3, for FGA, PA and FTA.
    """
    groups = np.asarray(found, np.int64)
    if not len(groups) == len(truth) == len(true_templates):
        raise DataError(
            f"{len(groups)} parsed lines cannot be scored with {len(truth)} lines of truth",
            hint="parse the lines that were labelled, with the format they were labelled with",
        )
    if not len(groups):
        return ParseScore(
            grouping_accuracy=1.0, group_f1=1.0, parsing_accuracy=1.0, template_f1=1.0, groups=0,
            true_groups=0,
        )  # fmt: skip
    _, true_groups = np.unique(np.asarray(truth), return_inverse=True)
    _, own = np.unique(groups, return_inverse=True)
    plain = {group: plain_template(templates[int(group)]) for group in set(groups.tolist())}
    texts = {text: plain_template(text) for text in set(true_templates)}
    same = np.array(
        [
            plain[group] == texts[text]
            for group, text in zip(groups.tolist(), true_templates, strict=True)
        ]
    )
    sizes, true_sizes = np.bincount(own), np.bincount(true_groups)
    pairs, counts = np.unique(own * len(true_sizes) + true_groups, return_counts=True)
    left, right = np.divmod(pairs, len(true_sizes))
    is_right = (counts == sizes[left]) & (counts == true_sizes[right])
    num_right = int(is_right.sum())
    # A group's text counts when it is right for its lines, which all have one true text.
    first = np.unique(own, return_index=True)[1]
    num_texts = int(same[first[left[is_right]]].sum())
    both = len(sizes) + len(true_sizes)
    return ParseScore(
        grouping_accuracy=float(counts[is_right].sum() / len(groups)),
        group_f1=2 * num_right / both,
        parsing_accuracy=float(same.mean()),
        template_f1=2 * num_texts / both,
        groups=len(sizes),
        true_groups=len(true_sizes),
    )
