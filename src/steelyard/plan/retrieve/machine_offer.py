"""A part of a rented machine that holds an index."""

from dataclasses import dataclass

from steelyard.catalog.hardware import Accelerator
from steelyard.errors import ConfigError

__all__ = ["MachineOffer"]


@dataclass(frozen=True, kw_only=True)
class MachineOffer:
    """A part of a machine of the catalog that is rented.

    Attributes:
        name: the machine.
        memory_bytes: memory of the part.
        cores: cores of the part.
        usd_per_hour: rent of the part.
        source: where the price stands.
    """

    name: str
    memory_bytes: float
    cores: float
    usd_per_hour: float
    source: str

    @classmethod
    def of(cls, chip: Accelerator, memory_bytes: float, cores_whole: float) -> "MachineOffer":
        """Return the part of a machine with so much memory.

        Args:
            chip: a processor of the catalog with a rent.
            memory_bytes: memory that is wanted; all when 0.
            cores_whole: cores of the whole machine.

        Returns:
            The part; cores and rent go with the memory.

        Raises:
            ConfigError: it has no rent, or less memory.
        """
        wanted = memory_bytes or chip.memory_bytes
        if not chip.price_usd_per_hour or wanted > chip.memory_bytes:
            raise ConfigError(
                f"{chip.name} has {chip.memory_bytes / 1e9:,.0f} GB for "
                f"{chip.price_usd_per_hour:g} USD an hour, {wanted / 1e9:,.0f} GB are wanted",
                hint="give another --machine with a rent, or less memory",
            )
        share = wanted / chip.memory_bytes
        return cls(
            name=chip.name,
            memory_bytes=wanted,
            cores=max(1.0, cores_whole * share),
            usd_per_hour=chip.price_usd_per_hour * share,
            source=chip.price_source,
        )
