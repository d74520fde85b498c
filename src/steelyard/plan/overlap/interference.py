"""How fast operations run that share a device: performance by the share of it that each gets."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from steelyard.errors import ConfigError
from steelyard.quantity import Provenance

__all__ = ["InterferenceTable", "PairTiming", "published_interference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTiming:
    """Two operations that ran at the same time, in one setting of the device.

    Attributes:
        kind: kind of the matrix product, whose performance stands for its share.
        other: kind of what ran beside it.
        performance: speed of the product over its speed alone.
        other_performance: speed of the other over its speed alone.
        setting: how the device was divided, such as "1+1 threads".
    """

    kind: str
    other: str
    performance: float
    other_performance: float
    setting: str


@dataclass(frozen=True, kw_only=True)
class InterferenceTable:
    """Performance of each kind of operation at shares of the device; 1 is alone.

    Attributes:
        curves: for each kind, pairs of share and performance, both rising; alone (1, 1) is added.
        device: device it holds for.
        provenance: where the numbers come from.
        source: the same in words.
    """

    curves: Mapping[str, tuple[tuple[float, float], ...]]
    device: str
    provenance: Provenance = "measured"
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse curves that do not rise within 0 to 1."""
        for kind, points in self.curves.items():
            values = np.array([(0.0, 0.0), *points], dtype=float)
            if (np.diff(values, axis=0) < 0).any() or (values[1:] <= 0).any() or values.max() > 1:
                raise ConfigError(
                    f"{kind}: shares and performances must rise within 0 and 1, got {points}",
                    hint="keep the Pareto points only",
                )

    def points(self, kind: str) -> dict[float, float]:
        """Return performance by share of a kind, alone included.

        Args:
            kind: kind of operation.

        Returns:
            Shares, rising, with their performances.

        Raises:
            ConfigError: the table has no entry of the kind.
        """
        if kind not in self.curves:
            known = ", ".join(sorted(self.curves)) or "none"
            raise ConfigError(
                f"the interference table of {self.device} has no entry for {kind}",
                hint=f"it has: {known}; measure the kind with plan.overlap.profile",
            )
        return dict(self.curves[kind]) | {1.0: 1.0}

    @classmethod
    def from_pairs(
        cls, pairs: Iterable[PairTiming], *, device: str, source: str = ""
    ) -> "InterferenceTable":
        """Make a table of measured pairs.

        A product's share is the performance it kept; what it lost is the other's share. Of one
        setting the median over all sizes counts. Where a larger share gives less, it is left out.

        Args:
            pairs: measured pairs.
            device: device they ran on.
            source: how they were measured.

        Returns:
            The table, with provenance "measured".

        Source: Zhu et al. 2024 (NanoFlow, arXiv 2408.12757), section 4.1.1.
        """
        by_setting: defaultdict[tuple[str, str, str], list[PairTiming]] = defaultdict(list)
        for pair in pairs:
            by_setting[pair.setting, pair.kind, pair.other].append(pair)
        found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for (_, kind, other), group in by_setting.items():
            kept = min(max(median(item.performance for item in group), 0.01), 0.99)
            beside = min(max(median(item.other_performance for item in group), 0.01), 1.0)
            found[kind].append((kept, kept))
            found[other].append((1.0 - kept, beside))
        curves = {kind: _pareto(points) for kind, points in found.items()}
        return cls(curves=curves, device=device, source=source)


def _pareto(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Keep the points that no smaller share reaches."""
    kept: list[tuple[float, float]] = []
    for share, performance in sorted(points, key=lambda item: (item[0], -item[1])):
        if not kept or performance > kept[-1][1]:
            kept.append((share, performance))
    return tuple(kept)


def published_interference(device: str = "A100-SXM4-80GB") -> InterferenceTable:
    """Return the shape of interference on A100s: a product keeps what it is given, others more.

    A fifth of the device gives decode attention three tenths of its speed and a collective half of
    it; between the shares .2 and .8 points are interpolated smoothly.

    Args:
        device: device the table is taken for.

    Returns:
        The table in steps of a tenth, for "gemm", "prefill_attention", "decode_attention" and
        "collective", with provenance "assumed".

    Source: after Zhu et al. 2024 (NanoFlow, arXiv 2408.12757), table 3.
    """
    from scipy.interpolate import PchipInterpolator

    shares = [round(0.1 * step, 1) for step in range(1, 10)]
    known = (0.0, 0.1, 0.2, 0.8, 0.9, 1.0)

    def curve(*performance: float) -> tuple[tuple[float, float], ...]:
        # Monotone and smooth: straight lines between the points would bend the concave curve.
        between = PchipInterpolator(known, performance)
        return tuple((item, float(between(item))) for item in shares)

    same = tuple((item, item) for item in shares)
    return InterferenceTable(
        curves={
            "gemm": same,
            "prefill_attention": same,
            "decode_attention": curve(0.0, 0.2, 0.3, 0.85, 0.95, 1.0),
            "collective": curve(0.0, 0.3, 0.5, 0.9, 1.0, 1.0),
        },
        device=device,
        provenance="assumed",
        source="NanoFlow (arXiv 2408.12757), table 3, points between interpolated",
    )
