"""Which sessions of a log stand out, and why."""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.anomalies.isolation import IsolationForest
from steelyard.data.logs.detectors import ClusterDetector, InvariantDetector, PcaDetector
from steelyard.data.logs.fold import with_content
from steelyard.data.logs.parsing import find_templates
from steelyard.data.logs.reading import LogTable
from steelyard.data.logs.reasons import Reason, SessionRules
from steelyard.data.logs.sequences import NgramModel, SequenceDetector
from steelyard.data.logs.sessions import count_events, sessions_of, windows_of
from steelyard.data.logs.templates import TemplateSet
from steelyard.errors import ConfigError, DataError

__all__ = ["JudgedLog", "judge_log"]


@dataclass(frozen=True)
class JudgedLog:
    """Sessions of a log with how strange they are.

    Attributes:
        templates: templates of the lines.
        keys: names of the sessions, or their first lines.
        events: events of each session.
        scores: larger is stranger, [sessions].
        threshold: score above which a session is flagged.
        rules: that most sessions keep.
    """

    templates: TemplateSet
    keys: tuple[str, ...]
    events: tuple[tuple[int, ...], ...]
    scores: NDArray[np.float64]
    threshold: float
    rules: SessionRules

    def flagged(self) -> list[int]:
        """Return the sessions above the threshold, the strangest first."""
        order = np.argsort(-self.scores, kind="stable")
        return [int(place) for place in order if self.scores[place] > self.threshold]

    def reasons(self, place: int) -> list[Reason]:
        """Return what speaks most for a session being strange."""
        return self.rules.explain(self.events[place])


def judge_log(
    table: LogTable,
    *,
    session: str = "",
    window: int = 100,
    kind: Literal["pca", "invariants", "iforest", "clusters", "ngram"] = "invariants",
) -> JudgedLog:
    """Find the sessions of a log that are unlike the others.

    The detector is trained on the same sessions, of which most are taken to be normal.

    Args:
        table: the log.
        session: regular expression of what names the session of a line; empty for windows.
        window: lines of a window.
        kind: how sessions are judged.

    Returns:
        The sessions.

    Raises:
        ConfigError: the expression is none.
        DataError: there are fewer than two sessions.
    """
    found, _ = find_templates(table)
    templates = found.templates
    numbers, texts = _lines(table, templates)
    if session:
        try:
            search = re.compile(session).search
        except re.error as error:
            raise ConfigError(f"--session {session!r} is no regular expression: {error}") from error
        matches = [search(text) if text is not None else None for text in texts]
        named = [match.group() if match else None for match in matches]
        keys, events, _ = sessions_of(numbers, named)
    else:
        events = windows_of(numbers, window)
        keys = [f"line {1 + place * window}" for place in range(len(events))]
    if len(events) < 2:
        raise DataError(
            f"the log has {len(events)} sessions, but at least two are compared",
            hint="give another --session, or a smaller --window",
        )
    scores, threshold = _scored(events, len(templates.texts), kind)
    rules = SessionRules(events, len(templates.texts))
    held = tuple(tuple(session) for session in events)
    return JudgedLog(templates, tuple(keys), held, scores, threshold, rules)


def _lines(table: LogTable, templates: TemplateSet) -> tuple[NDArray[np.int32], list[str | None]]:
    """Return the template and the content of each line."""
    numbers: list[NDArray[np.int32]] = []
    texts: list[str | None] = []
    for _, batch in table.batches():
        column = with_content(batch)
        numbers.append(templates.assign(column))
        texts += column.to_pylist()
    return np.concatenate(numbers or [np.zeros(0, np.int32)]), texts


def _scored(
    events: list[list[int]], num_templates: int, kind: str
) -> tuple[NDArray[np.float64], float]:
    if kind == "ngram":
        judge = SequenceDetector(model=NgramModel.fit(events))
        return judge.score(events), judge.threshold
    counts = count_events(events, num_templates)
    detector = {
        "pca": PcaDetector,
        "invariants": InvariantDetector,
        "iforest": IsolationForest,
        "clusters": ClusterDetector,
    }[kind].fit(counts)
    return detector.score(counts), detector.threshold
