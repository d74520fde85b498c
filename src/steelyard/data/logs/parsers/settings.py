"""Settings with which the parsers of the literature were published, one set a system."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from steelyard.data.logs.parsers.ael import AelParser
from steelyard.data.logs.parsers.brain import BrainParser
from steelyard.data.logs.parsers.drain import DrainParser
from steelyard.data.logs.parsers.iplom import IplomParser
from steelyard.data.logs.parsers.spell import SpellParser

__all__ = ["PARSERS", "published_parser"]

PARSERS = ("drain", "brain", "spell", "ael", "iplom")
"""Names of the parsers."""
_BRAIN = {
    "Android": (5, "():="),
    "Apache": (4, ""),
    "BGL": (6, "=()"),
    "HDFS": (2, ":"),
    "HPC": (5, "=-:"),
    "Hadoop": (6, "_:=()"),
    "HealthApp": (4, ":=|"),
    "Linux": (4, "=:"),
    "Mac": (5, ""),
    "OpenSSH": (6, ""),
    "OpenStack": (5, ""),
    "Proxifier": (3, ""),
    "Spark": (4, ":"),
    "Thunderbird": (3, ":="),
    "Windows": (3, ":=[]"),
    "Zookeeper": (3, ":="),
}
"""Threshold, and marks that a blank is put after."""
_SPELL = {
    "Android": 0.95,
    "Apache": 0.6,
    "BGL": 0.75,
    "HDFS": 0.7,
    "HPC": 0.65,
    "Hadoop": 0.7,
    "HealthApp": 0.5,
    "Linux": 0.55,
    "OpenStack": 0.9,
    "Windows": 0.7,
    "Zookeeper": 0.7,
}
_AEL = {
    "BGL": (0.5, 2),
    "HDFS": (0.5, 2),
    "HPC": (0.4, 5),
    "Linux": (0.6, 2),
    "Android": (0.6, 2),
    "HealthApp": (0.6, 2),
    "OpenStack": (0.5, 6),
}
"""Share to be merged, and least events."""
_IPLOM = {
    "Android": (0.25, 0.3),
    "Apache": (0.3, 0.4),
    "BGL": (0.4, 0.01),
    "HDFS": (0.35, 0.25),
    "HPC": (0.58, 0.25),
    "Hadoop": (0.4, 0.2),
    "HealthApp": (0.25, 0.3),
    "Linux": (0.3, 0.3),
    "OpenStack": (0.9, 0.25),
    "Windows": (0.3, 0.25),
    "Zookeeper": (0.4, 0.7),
}
"""Cluster goodness and lower bound."""


def published_parser(name: str, system: str, settings: Mapping[str, Any]) -> Any:
    """Return a parser with the settings it was published with.

    Args:
        name: one of `PARSERS`.
        system: such as HDFS; one that was not published has the parser's defaults.
        settings: `mask_regex`, `drain_st` and `drain_depth` of the system.

    Returns:
        Something with a method `parse`.

    Source: settings of the logparser benchmark (Zhu et al. 2019, arXiv 1811.03509).
    """
    given: Sequence[str] = settings["mask_regex"]
    masks = [re.compile(text) for text in given]
    if name == "drain":
        return DrainParser(
            similarity=settings["drain_st"], depth=settings["drain_depth"], masks=masks
        )
    if name == "brain":
        threshold, marks = _BRAIN.get(system, (4, ""))
        spaced = {mark: f"{mark} " for mark in marks}
        if system == "BGL":
            spaced[".."] = ".. "
        if system == "HPC":
            masks = []
        if system == "Linux":
            masks.append(re.compile(r"J([a-z]{2})"))
        if system == "OpenStack":
            # Two blanks end a path there, which no line has: paths are not masked.
            masks[1] = re.compile(r"/.+?\s ")
        return BrainParser(threshold=threshold, masks=masks, spaced=spaced)
    if name == "spell":
        return SpellParser(tau=_SPELL.get(system, 0.5), masks=masks)
    if name == "ael":
        share, events = _AEL.get(system, (0.4, 2))
        return AelParser(merge_share=share, min_events=events, masks=masks)
    goodness, lower = _IPLOM.get(system, (0.35, 0.25))
    return IplomParser(goodness=goodness, lower=lower, masks=masks)
