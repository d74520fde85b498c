"""What a quantization found, as data and as a report."""

import math
from dataclasses import dataclass
from typing import Any

from steelyard.quantity import Check
from steelyard.runs.report import Cell, Checks, Column, Facts, Report, Section, Table
from steelyard.units import pretty

__all__ = ["LayerSummary", "QuantizeResult"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSummary:
    """How one layer is stored.

    Attributes:
        layer: its index.
        types: type of each matrix, by name.
        method: how int4 codes were found; "nearest" where there are none.
        num_bytes: bytes of the layer.
    """

    layer: int
    types: dict[str, str]
    method: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizeResult:
    """What was written and what it costs.

    Attributes:
        folder: the written folder.
        text: what was measured on.
        method: the method that lost least on the sequences to choose by.
        tried: change of the loss on those sequences, nats per token, by method.
        losses_before: nats per token of the model, by passage ("text", "own").
        losses_after: the same of what was written.
        spread: standard error of the difference, by passage.
        tokens: predicted tokens of each passage.
        bytes_before: bytes of the model's tensors.
        bytes_after: bytes of what was written.
        layers: how each layer is stored.
        checks: forecast loss under mixed types beside the measured one.
    """

    folder: str
    text: str
    method: str
    tried: dict[str, float]
    losses_before: dict[str, float]
    losses_after: dict[str, float]
    spread: dict[str, float]
    tokens: dict[str, int]
    bytes_before: int
    bytes_after: int
    layers: list[LayerSummary]
    checks: list[Check]

    def rise(self, passage: str) -> float:
        """Return the relative rise of the perplexity on a passage."""
        return math.expm1(self.losses_after[passage] - self.losses_before[passage])

    def report(self) -> Report:
        """Return what people see."""
        sections = [
            Section("Quality and size", [Facts(self._facts()), self._quality()]),
            Section("Layers", [self._layers()]),
        ]
        # One method was not chosen among any: there is nothing to show.
        if len(self.tried) > 1:
            sections.insert(1, Section("Methods", [self._methods()]))
        if self.checks:
            sections.insert(1, Section("Forecast and measured", [Checks(self.checks)]))
        return Report(f"Quantized model in {self.folder}", f"measured on {self.text}", sections)

    def _facts(self) -> list[tuple[str, str, str]]:
        share = self.bytes_after / self.bytes_before
        return [
            ("bytes before", pretty(self.bytes_before, "byte"), "measured"),
            ("bytes after", f"{pretty(self.bytes_after, 'byte')} ({share:.2f}x)", "measured"),
            ("method", self.method, ""),
        ]

    def _quality(self) -> Table:
        words = {"text": "text kept aside", "own": "the model's own outputs"}
        rows: list[list[Cell]] = [
            [
                words[name],
                f"{math.exp(self.losses_before[name]):.4f}",
                f"{math.exp(self.losses_after[name]):.4f}",
                f"{self.rise(name):+.3%} ± {self.spread[name]:.3%}",
                f"{self.tokens[name]:,}",
            ]
            for name in self.losses_before
        ]
        heads = [
            Column("perplexity on"),
            Column("before", align="right"),
            Column("after", align="right"),
            Column("change", align="right"),
            Column("tokens", align="right", rank=1),
        ]
        return Table(heads, rows, "± is a standard error over sequences; activations in float32.")

    def _methods(self) -> Table:
        rows: list[list[Cell]] = [
            [name, f"{math.expm1(change):+.3%}"] for name, change in self.tried.items()
        ]
        heads = [Column("method"), Column("perplexity", align="right")]
        return Table(heads, rows, "On sequences that nothing was fitted to; the least was taken.")

    def _layers(self) -> Table:
        rows: list[list[Cell]] = [
            [
                item.layer,
                ", ".join(f"{name} {kind}" for name, kind in item.types.items()),
                item.method,
                pretty(item.num_bytes, "byte"),
            ]
            for item in self.layers
        ]
        heads = [
            Column("layer"),
            Column("types"),
            Column("method"),
            Column("bytes", align="right"),
        ]
        return Table(heads, rows)

    def values(self) -> dict[str, Any]:
        """Return what programs want to know."""
        from steelyard.config import to_plain

        return to_plain(self) | {
            "perplexity_rise": {name: self.rise(name) for name in self.losses_before}
        }
