"""Options that change how a simulated step runs: overlaps, the model's block, slow machines."""

from dataclasses import dataclass, replace
from typing import Any

import cyclopts

from steelyard.catalog.architecture import Architecture
from steelyard.cli.output import Switch
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError, SteelyardError, merged
from steelyard.sim.step.stragglers import Stragglers
from steelyard.sim.taskgraph import StepOverlap

__all__ = ["StepOptions"]

_OVERLAPS = ("tensor", "pipeline", "data", "loader")
_TENSOR_CHUNKS = 4


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How a step runs.

    Args:
        overlap: what runs beside the kernels instead of between them, separated by commas: tensor
            (a layer's products in chunks), pipeline, data, loader; or none.
        contention: seconds by which kernels lengthen for each second of traffic beside them.
        load_s: seconds of reading a step's data.
        parallel_block: attention and MLP read the same norm, and share their traffic.
        window: tokens that a token attends, itself included, 0 for the model's own; MFU does not
            count what is skipped.
        eager: norms and activations are not fused.
        stragglers: share of machines that are slow, such as 0.005; the mean step is shown.
        slowdown: share by which their kernels take longer.
    """

    overlap: str = "pipeline,data,loader"
    contention: float = 0.0
    load_s: float = 0.0
    parallel_block: Switch = False
    window: int = 0
    eager: Switch = False
    stragglers: float = 0.0
    slowdown: float = 0.1

    def check(self) -> None:
        """Refuse impossible numbers and unknown overlaps, all at once."""
        rules = {
            "--window": (self.window, self.window >= 0, "0 or more"),
            "--contention": (self.contention, self.contention >= 0, "0 or more"),
            "--load-s": (self.load_s, self.load_s >= 0, "0 or more"),
            "--stragglers": (self.stragglers, 0 <= self.stragglers <= 1, "from 0 to 1"),
            "--slowdown": (self.slowdown, self.slowdown >= 0, "0 or more"),
        }
        wrong: list[SteelyardError] = [
            ConfigError(f"{name} is {value}, but must be {allowed}", hint=f"change {name}")
            for name, (value, is_good, allowed) in rules.items()
            if not is_good
        ]
        names = self._names()
        is_none = names == {"none"}
        if not is_none and (not names or names - {*_OVERLAPS}):
            wrong.append(
                ConfigError(
                    f"--overlap is {self.overlap!r}, but must be none, or some of "
                    f"{', '.join(_OVERLAPS)}",
                    hint="separate them by commas, such as --overlap tensor,pipeline,data,loader",
                )
            )
        if wrong:
            raise merged(wrong)

    def refuse_stragglers(self) -> None:
        """Refuse assumed slow machines where a log is searched for them."""
        if self.stragglers:
            raise ConfigError(
                f"--stragglers is {self.stragglers:g}, but slow machines are what the log is "
                "searched for",
                hint="leave --stragglers out",
            )

    def settings(self, arch: Architecture, machine: Machine) -> dict[str, Any]:
        """Return the fields of a `TrainingStep` that these options set.

        Args:
            arch: model as the catalog has it.
            machine: accelerator as the catalog has it.

        Returns:
            Model and machine among them.
        """
        names = self._names()
        windowed = replace(arch, sliding_window=self.window, full_attention_every=0)
        return {
            "arch": windowed if self.window else arch,
            "machine": replace(machine, fused=False) if self.eager else machine,
            "overlap": StepOverlap(**{name: name in names for name in _OVERLAPS[1:]}),
            "tensor_chunks": _TENSOR_CHUNKS if "tensor" in names else 1,
            "contention": self.contention,
            "parallel_block": self.parallel_block,
            "load_s": self.load_s,
        }

    def slow_machines(self) -> Stragglers | None:
        """Return the slow machines, None for none."""
        found = Stragglers(share=self.stragglers, slowdown=self.slowdown)
        return found if self.stragglers else None

    def _names(self) -> set[str]:
        return set(self.overlap.replace(" ", "").split(",")) - {""}
