"""Pictures of builds: what settings find and how fast, as the pilot said and as it came."""

from collections.abc import Mapping, Sequence
from typing import Any

from steelyard.retrieve.choosing_picture import CandidatePoint, candidate_chart
from steelyard.retrieve.text.fusion import Fusion
from steelyard.retrieve.vector_pilot import SearchSetting

__all__ = ["probes_around", "settings_chart", "ways_chart"]

_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_TOLD = "hollow: forecast by the pilot; filled: measured in the index; the circle is the choice"


def probes_around(nprobe: int, nlist: int) -> list[int]:
    """Return numbers of cells around one, from a quarter to eight times as many.

    Args:
        nprobe: cells that are looked into unless asked otherwise.
        nlist: cells.

    Returns:
        Numbers from 1 to nlist, ascending; nprobe is among them.
    """
    return sorted({min(max(round(nprobe * factor), 1), nlist) for factor in _FACTORS} | {nprobe})


def settings_chart(
    kind: str, said: Sequence[SearchSetting], came: Sequence[SearchSetting], nprobe: int
) -> dict[str, Any]:
    """Draw queries a second over recall for numbers of cells.

    Args:
        kind: kind of the index.
        said: what the pilot forecast.
        came: what was measured, of the same numbers.
        nprobe: cells that are looked into unless asked otherwise.

    Returns:
        Vega-Lite spec.
    """
    points = [
        CandidatePoint(
            index=kind,
            setting="1 cell" if item.nprobe == 1 else f"{item.nprobe:,} cells",
            found=item.recall,
            rate=1 / item.query_s,
            is_measured=is_measured,
            is_chosen=item.nprobe == nprobe,
        )
        for is_measured, items in ((False, said), (True, came))
        for item in items
    ]
    return candidate_chart(
        points, title="What the index finds by cells, and how fast", told=_TOLD, names=True
    )


def ways_chart(
    candidates: Sequence[tuple[Fusion, float]],
    chosen: Fusion,
    said_s: Mapping[str, float],
    came_s: Mapping[str, float],
) -> dict[str, Any]:
    """Draw queries a second over what weights of words and vectors find.

    Args:
        candidates: weights that were tried, with the mean reciprocal rank of the passage that a
            sentence was taken from.
        chosen: the weights that were chosen.
        said_s: seconds of a query by "words", "vectors" and "words + vectors", forecast.
        came_s: the same, measured.

    Returns:
        Vega-Lite spec.
    """
    points = [
        CandidatePoint(
            index=way,
            setting=_setting(fusion),
            found=found,
            rate=1 / seconds[way],
            is_measured=is_measured,
            is_chosen=fusion == chosen and way == "words + vectors",
        )
        for is_measured, seconds in ((False, said_s), (True, came_s))
        for fusion, found in candidates
        for way in _ways(fusion, chosen)
    ]
    return candidate_chart(
        points,
        title="What words and vectors find, and how fast",
        found="reciprocal rank of the passage that a sentence was taken from",
        told=_TOLD,
        is_share=False,
    )


def _ways(fusion: Fusion, chosen: Fusion) -> list[str]:
    """Return the ways to search that are such a fusion; all of one part need not ask the other."""
    alone = {0.0: "words", 1.0: "vectors"}.get(fusion.vector_weight)
    if fusion.kind == "ranks" or alone is None:
        return ["words + vectors"]
    return [alone, "words + vectors"] if fusion == chosen else [alone]


def _setting(fusion: Fusion) -> str:
    """Return a fusion in few words."""
    return "ranks" if fusion.kind == "ranks" else f"{fusion.vector_weight:.0%} vectors"
