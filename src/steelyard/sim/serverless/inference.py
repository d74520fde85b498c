"""Start-ups of inference engines: five steps, by how much of a start was done ahead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.broadcast import chain_arrivals_s
from steelyard.errors import ConfigError, DataError
from steelyard.files import read_json, write_json
from steelyard.sim.serverless.startup import EmpiricalQuantiles, StartUp

__all__ = ["MECHANISMS", "STEPS", "EngineStarts", "published_starts"]

STEPS = ("scaler_pre", "te_pre_load", "te_load", "te_post_load", "scaler_post")
"""Pod; process, imports and devices; weights; memory and first steps; telling the routers."""
MECHANISMS = ("cold", "cold-dram", "pre-warmed", "dram", "fork")
"""Nothing ahead; weights in memory; a process that waits; both; weights from an engine that runs.
"""

_LLAMA_BYTES = 16.06e9
_BEFORE_S, _AFTER_S = 42.12, 4.75
_TENSORS_S = 0.3
_STORAGE_RATE, _PCIE_RATE, _LINK_RATE = 2e9, 32e9, 25e9
_COLD_SHARES = {"scaler_pre": 0.25, "te_pre_load": 0.45, "te_post_load": 0.28, "scaler_post": 0.02}
_READY_SHARES = {"te_post_load": 0.9, "scaler_post": 0.1}


@dataclass(frozen=True, kw_only=True)
class EngineStarts:
    """How an inference engine starts, by mechanism.

    Attributes:
        start_ups: parts of a start, named as in `STEPS`, by names out of `MECHANISMS`.
        source: where the times are from, and which of them were assumed.
        provenance: "measured", "published" or "assumed": that of the whole starts.
        weights_bytes: size of the weights.
        link_bytes_per_s: rate at which a fork gets them from another engine; 0 where it has none.
    """

    start_ups: Mapping[str, StartUp]
    source: str
    provenance: str
    weights_bytes: float
    link_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.start_ups) - set(MECHANISMS))
        if unknown or not self.start_ups:
            raise ConfigError(
                f"mechanisms of a start are {', '.join(unknown) or 'none'}, but must be among "
                f"{', '.join(MECHANISMS)}"
            )
        for name, item in self.start_ups.items():
            if tuple(item.parts) != STEPS:
                raise ConfigError(
                    f"steps of the start {name!r} are {', '.join(item.parts)}, but must be "
                    f"{', '.join(STEPS)}"
                )

    @classmethod
    def of_samples(
        cls,
        samples: Mapping[str, Mapping[str, Sequence[float]]],
        *,
        source: str,
        weights_bytes: float,
    ) -> "EngineStarts":
        """Take measured starts: sorted samples are the quantiles.

        Args:
            samples: seconds of each start, by mechanism and step.
            source: where they were measured.
            weights_bytes: size of the weights.

        Returns:
            The starts; steps are drawn independently.

        Raises:
            ConfigError: a mechanism or step is unknown or has no sample.
        """
        found = {}
        for mechanism, steps in samples.items():
            parts = {}
            for step, seconds in steps.items():
                values = np.sort(np.asarray(seconds, dtype=np.float64))
                levels = np.linspace(0, 1, max(len(values), 2))[: len(values)]
                parts[step] = EmpiricalQuantiles.from_curve(levels, values)
            found[mechanism] = StartUp(parts, is_pooled=False)
        return cls(
            start_ups=found, source=source, provenance="measured", weights_bytes=weights_bytes
        )

    def __getitem__(self, mechanism: str) -> StartUp:
        """Return the start of a mechanism.

        Args:
            mechanism: one of `MECHANISMS`.

        Returns:
            Its parts.

        Raises:
            ConfigError: it is not known here.
        """
        if mechanism not in self.start_ups:
            raise ConfigError(
                f"starts of the kind {mechanism!r} are not known, but of "
                f"{', '.join(self.start_ups)}",
                hint=f"the times are from: {self.source}",
            )
        return self.start_ups[mechanism]

    def mean_s(self, mechanism: str) -> dict[str, float]:
        """Return the mean seconds of each step of a mechanism."""
        return {name: part.mean_s for name, part in self[mechanism].parts.items()}

    def steps_s(self, mechanism: str, count: int, *, seed: int, busy: float = 0.0) -> NDArray:
        """Draw the steps of several engines that start at once.

        Forks load from one engine that runs, in a chain; other kinds load side by side, each at its
        own rate. From zero there is none to fork, so that a fleet's first start is another kind.

        Args:
            mechanism: out of `start_ups`.
            count: engines, at least 1.
            seed: seed of the draws.
            busy: share of the source's link that its requests take, for forks.

        Returns:
            Seconds [count, steps], in the order of `STEPS`; a fork's weights take the wait for the
            engines before it too.
        """
        parts_s = self[mechanism].sample(count, seed)
        if mechanism != "fork":
            return parts_s
        rate, load = self.link_bytes_per_s, STEPS.index("te_load")
        args: dict[str, Any] = {"busy_fraction": busy}
        chain_s = chain_arrivals_s(self.weights_bytes, count, rate, **args)
        # The drawn step holds one transfer without other traffic; the chain replaces that part.
        alone_s = self.weights_bytes / rate
        # A receiver hands pieces on as soon as its own process runs: one that is late holds up all
        # that follow.
        begins_s = parts_s[:, :load].sum(axis=1)
        held_s = np.maximum.accumulate(begins_s) - begins_s
        parts_s[:, load] += chain_s - alone_s + held_s
        return parts_s

    def ready_s(self, mechanism: str, count: int, *, seed: int, busy: float = 0.0) -> NDArray:
        """Draw when each of several engines that start at once is ready, as `steps_s`.

        Args:
            mechanism: out of `start_ups`.
            count: engines, at least 1.
            seed: seed of the draws.
            busy: share of the source's link that its requests take, for forks.

        Returns:
            Seconds after the order [count].
        """
        return self.steps_s(mechanism, count, seed=seed, busy=busy).sum(axis=1)

    def save(self, path: Path) -> None:
        """Write the starts as JSON."""
        table = {
            name: {
                step: {"quantiles_s": part.values_s.tolist(), "share": part.share}
                for step, part in item.parts.items()
            }
            for name, item in self.start_ups.items()
        }
        words = {
            "source": self.source,
            "provenance": self.provenance,
            "weights_bytes": self.weights_bytes,
            "link_bytes_per_s": self.link_bytes_per_s,
        }
        write_json(path, words | {"start_ups": table})

    @classmethod
    def load(cls, path: Path) -> "EngineStarts":
        """Read starts that `save` wrote.

        Args:
            path: JSON file.

        Returns:
            The starts.

        Raises:
            DataError: the file is missing, not JSON, or lacks a field.
            ConfigError: a mechanism, step or time is out of range.
        """
        value = read_json(path)
        try:
            start_ups = {
                name: StartUp(
                    {
                        step: EmpiricalQuantiles(np.array(part["quantiles_s"]), part["share"])
                        for step, part in steps.items()
                    },
                    is_pooled=False,
                )
                for name, steps in value["start_ups"].items()
            }
            return cls(
                start_ups=start_ups,
                source=str(value["source"]),
                provenance=str(value["provenance"]),
                weights_bytes=float(value["weights_bytes"]),
                link_bytes_per_s=float(value["link_bytes_per_s"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{path} holds no starts of an engine: {error!r}",
                hint="make it with steelyard serve starts",
            ) from error


def _part(mean_s: float, spread: float) -> EmpiricalQuantiles:
    """Return a log-normal step, cut at its 0.25 % quantiles; 0 where it does not occur."""
    from scipy.special import ndtri

    if not mean_s:
        return EmpiricalQuantiles.constant(0.0)
    sigma = np.sqrt(np.log1p(spread**2))
    levels = np.linspace(0.0025, 0.9975, 201)
    values = np.exp(sigma * ndtri(levels))
    # Held to the mean exactly: what is published is a mean.
    return EmpiricalQuantiles(values * mean_s / EmpiricalQuantiles(values).mean_s)


def published_starts(*, spread: float = 0.1) -> EngineStarts:
    """Return starts of Llama3-8B on the published platform.

    Published are the whole starts with nothing done ahead, 42.12 s, and with everything, 4.75 s,
    and 0.3 s to make tensors. Loads are derived: 16.06 GB over storage of 2 GB/s, PCIe of 32 GB/s,
    and a link of 25 GB/s between engines, whose rates are assumed. How the rest is divided among
    the other steps is in a plot alone: assumed, as is the spread.

    Args:
        spread: standard deviation of each step over its mean.

    Returns:
        The starts by every mechanism of `MECHANISMS`.

    Source: Hu et al. 2025 (arXiv 2501.14417), figure 1 and section 6.
    """
    loads = {
        "storage": _TENSORS_S + _LLAMA_BYTES / _STORAGE_RATE,
        "memory": _TENSORS_S + _LLAMA_BYTES / _PCIE_RATE,
        "fork": _TENSORS_S + _LLAMA_BYTES / _LINK_RATE,
    }
    cold = {name: share * (_BEFORE_S - loads["storage"]) for name, share in _COLD_SHARES.items()}
    ready = {name: share * (_AFTER_S - loads["memory"]) for name, share in _READY_SHARES.items()}
    kinds = {
        "cold": cold | {"te_load": loads["storage"]},
        "cold-dram": cold | {"te_load": loads["memory"]},
        "pre-warmed": ready | {"te_load": loads["storage"]},
        "dram": ready | {"te_load": loads["memory"]},
        "fork": ready | {"te_load": loads["fork"]},
    }
    return EngineStarts(
        start_ups={
            name: StartUp(
                {step: _part(means.get(step, 0.0), spread) for step in STEPS}, is_pooled=False
            )
            for name, means in kinds.items()
        },
        source="totals published for Llama3-8B (arXiv 2501.14417); steps and spread assumed",
        provenance="published",
        weights_bytes=_LLAMA_BYTES,
        link_bytes_per_s=_LINK_RATE,
    )
