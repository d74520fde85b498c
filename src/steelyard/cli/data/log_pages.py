"""What `steelyard data logs` shows: templates over time, odd sessions, scores."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.runs.report import Cell, Chart, Column, Facts, Report, Section, Table, Text

if TYPE_CHECKING:
    from steelyard.data.logs import LogTable, ParsedLog, ParseScore
    from steelyard.data.logs.judging import JudgedLog

__all__ = [
    "bench_page",
    "bench_values",
    "detect_page",
    "detect_values",
    "parse_page",
    "parse_values",
]

_SHOWN, _DRAWN = 40, 15
_FIGURES = {
    "GA": "grouping_accuracy",
    "FGA": "group_f1",
    "PA": "parsing_accuracy",
    "FTA": "template_f1",
}


def parse_page(table: "LogTable", parsed: "ParsedLog") -> Report:
    """Make the page of a parsed log."""
    order = np.argsort(-parsed.counts, kind="stable")
    facts = Facts(
        [
            ("lines", f"{parsed.lines:,}", ""),
            ("templates", f"{int((parsed.counts > 0).sum()):,}", ""),
            ("lines without a template", f"{parsed.unmatched:,}", ""),
            ("format", table.format.pattern or "none: lines are taken whole", ""),
        ]
    )
    rows: list[list[Cell]] = [
        [int(at), f"{parsed.counts[at]:,}", parsed.templates.texts[at]]
        for at in order[:_SHOWN]
        if parsed.counts[at]
    ]
    note = f"the {_SHOWN} most frequent; --json has all" if len(order) > _SHOWN else ""
    columns = [Column("template"), Column("lines", align="right"), Column("text")]
    problems = [f"{count:,} lines: {name}" for name, count in parsed.problems.items()]
    problems += list(table.unreadable.values())
    sections = [
        Section("Log", [facts]),
        Section("Templates", [Table(columns, rows, caption=note)]),
        Section("Problems", [Text(line) for line in problems] or [Text("none")]),
    ]
    if parsed.lines > 1 and rows:
        sections.insert(1, Section("Over the log", [_timeline(parsed, order[:_DRAWN])]))
    first = table.files[0].path
    told = first if len(table.files) == 1 else f"{first} and {len(table.files) - 1} more"
    return Report("Templates", told, sections)


def _timeline(parsed: "ParsedLog", order: np.ndarray) -> Chart:
    """Draw how often each template comes in each part of the log."""
    import altair as alt

    from steelyard.runs import layers

    used = [int(at) for at in order if parsed.counts[at]]
    labels = [_short(f"E{at} {parsed.templates.texts[at]}") for at in used]
    parts = parsed.timeline.shape[1]
    rows = [
        {
            "template": label,
            "first": 1 + part * parsed.lines // parts,
            "last": 1 + (part + 1) * parsed.lines // parts,
            "lines": int(count),
            "share": float(count / parsed.timeline[at].max()),
        }
        for at, label in zip(used, labels, strict=True)
        for part, count in enumerate(parsed.timeline[at])
        if count
    ]
    chart = (
        alt.Chart(layers.values(rows))
        .mark_rect()
        .encode(
            x=alt.X("first:Q", title="Line", scale=alt.Scale(domain=[1, parsed.lines + 1])),
            x2="last:Q",
            y=alt.Y("template:N", title=None, sort=labels, axis=alt.Axis(labelLimit=330)),
            color=alt.Color(
                "share:Q", legend=None, scale=alt.Scale(scheme="blues", domain=[-0.2, 1])
            ),
            tooltip=["template:N", "first:Q", "lines:Q"],
        )
        .properties(
            width=layers.PLOT_WIDTH - 240, height=alt.Step(24), title="The most frequent templates"
        )
    )
    caption = (
        f"the log's {parsed.lines:,} lines in {parts} equal parts; darkest is the part in which a "
        "template has most lines"
    )
    return Chart(layers.finish(chart), caption)


def _short(text: str) -> str:
    """Return a text that fits beside a chart; the table below has all of it."""
    return text if len(text) <= 48 else text[:47] + "…"


def parse_values(table: "LogTable", parsed: "ParsedLog") -> dict[str, Any]:
    """Return all figures of a parsed log, for programs."""
    return {
        "lines": parsed.lines,
        "unmatched": parsed.unmatched,
        "problems": parsed.problems,
        "format": table.format.pattern,
        "files": [item.path for item in table.files],
        "unreadable": table.unreadable,
        "templates": [
            {"template_id": at, "lines": int(count), "template": text}
            for at, (text, count) in enumerate(
                zip(parsed.templates.texts, parsed.counts, strict=True)
            )
        ],
    }


def detect_page(judged: "JudgedLog", most: int) -> Report:
    """Make the page of odd sessions."""
    flagged = judged.flagged()
    rows: list[list[Cell]] = []
    used: set[int] = set()
    for place in flagged[:most]:
        reasons = judged.reasons(place)
        used |= {reason.event for reason in reasons}
        told = "; ".join(dict.fromkeys(reason.text for reason in reasons))
        rows.append([judged.keys[place], f"{judged.scores[place]:.3g}", told or "none by rules"])
    columns = [Column("session"), Column("score", align="right"), Column("reasons")]
    facts = Facts([("sessions", f"{len(judged.keys):,}", ""), ("flagged", f"{len(flagged):,}", "")])
    names: list[list[Cell]] = [
        [f"E{event}", judged.templates.texts[event]] for event in sorted(used)
    ]
    sections = [
        Section("Log", [facts]),
        Section("Flagged sessions", [Table(columns, rows)] if rows else [Text("none")]),
    ]
    if names:
        sections.append(Section("Events", [Table([Column("event"), Column("template")], names)]))
    return Report("Sessions", "unlike the others of the same log", sections)


def detect_values(judged: "JudgedLog", most: int) -> dict[str, Any]:
    """Return odd sessions, for programs."""
    flagged = judged.flagged()
    return {
        "sessions": len(judged.keys),
        "flagged": len(flagged),
        "threshold": judged.threshold,
        "templates": list(judged.templates.texts),
        "shown": [
            {
                "session": judged.keys[place],
                "score": float(judged.scores[place]),
                "events": list(judged.events[place]),
                "reasons": [
                    {"event": reason.event, "weight": reason.weight, "text": reason.text}
                    for reason in judged.reasons(place)
                ],
            }
            for place in flagged[:most]
        ],
    }


def bench_page(scores: "Mapping[str, Mapping[str, ParseScore]]") -> Report:
    """Make the table of scores."""
    parsers = list(next(iter(scores.values())))
    columns = [Column("system")]
    columns += [
        Column(f"{name} {figure}", align="right", rank=figure not in ("GA", "FGA"))
        for name in parsers
        for figure in _FIGURES
    ]
    rows: list[list[Cell]] = [
        [
            system,
            *(
                f"{getattr(found[name], field):.3f}"
                for name in parsers
                for field in _FIGURES.values()
            ),
        ]
        for system, found in scores.items()
    ]
    means = _means(scores)
    rows.append(
        ["mean", *(f"{means[name][figure]:.3f}" for name in parsers for figure in _FIGURES)]
    )
    note = "steelyard has one setting for all systems, the others one for each, as published"
    return Report("Parsers", "labelled samples", [Section("Scores", [Table(columns, rows, note)])])


def _means(scores: "Mapping[str, Mapping[str, ParseScore]]") -> dict[str, dict[str, float]]:
    parsers = list(next(iter(scores.values())))
    return {
        name: {
            figure: float(np.mean([getattr(found[name], field) for found in scores.values()]))
            for figure, field in _FIGURES.items()
        }
        for name in parsers
    }


def bench_values(scores: "Mapping[str, Mapping[str, ParseScore]]") -> dict[str, Any]:
    """Return all scores, for programs."""
    from dataclasses import asdict

    listed = {
        system: {name: asdict(score) for name, score in found.items()}
        for system, found in scores.items()
    }
    return {"systems": listed, "means": _means(scores)}
