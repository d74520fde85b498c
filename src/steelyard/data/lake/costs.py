"""What it costs to keep bytes, to read them, and to write them anew."""

import math
from dataclasses import dataclass

from steelyard.catalog import StorageTier
from steelyard.errors import require

__all__ = ["StorageCosts"]

_GB, _TB = 1e9, 1e12
_PART_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCosts:
    """Prices of a store, and how fast it is read.

    Attributes:
        storage_usd_per_byte_month: keeping a byte for a month.
        maintenance_usd_per_byte: going over a kept byte once, for checks, privacy or compaction.
        maintenance_scans: times a month that this is done.
        read_usd_per_byte: reading a byte of a parent.
        write_usd_per_byte: writing a byte of a rebuilt table.
        scan_bytes_per_s: rate at which a parent is read.
        source: where the prices are from.
    """

    storage_usd_per_byte_month: float = 0.023 / _GB
    maintenance_usd_per_byte: float = 5.0 / _TB
    maintenance_scans: float = 1.0
    read_usd_per_byte: float = 5.0 / _TB
    write_usd_per_byte: float = 0.005 / 1000 / _PART_BYTES
    scan_bytes_per_s: float = 90e6
    source: str = (
        "S3 Standard in us-east-1: 0.023 USD per GB and month, 0.005 USD per 1,000 PUT requests of "
        "8 MiB parts, 85 to 90 MB/s per request; reads at Athena's 5 USD per TB scanned "
        "(aws.amazon.com/s3/pricing, aws.amazon.com/athena/pricing, S3 performance guidelines)"
    )

    def __post_init__(self) -> None:
        """Refuse prices below nothing and a rate of nothing."""
        prices = (
            "storage_usd_per_byte_month",
            "maintenance_usd_per_byte",
            "maintenance_scans",
            "read_usd_per_byte",
            "write_usd_per_byte",
        )
        rules = {
            name: (0 <= getattr(self, name) < math.inf, "0 or more, and finite") for name in prices
        }
        require(self, scan_bytes_per_s=(self.scan_bytes_per_s > 0, "above 0"), **rules)

    @classmethod
    def of_tier(cls, tier: StorageTier, *, maintenance_scans: float = 1.0) -> "StorageCosts":
        """Return the prices of a storage tier, read by an engine that charges as Athena does.

        Args:
            tier: storage tier of the catalog.
            maintenance_scans: times a month that kept bytes are gone over.

        Returns:
            Prices; a request reads or writes 8 MiB. A tier without a rate is read at 90 MB/s.
        """
        engine = cls().read_usd_per_byte
        read = engine + tier.retrieval_usd_per_gb / _GB + tier.read_usd_per_request / _PART_BYTES
        return cls(
            storage_usd_per_byte_month=tier.usd_per_gb_month / _GB,
            maintenance_usd_per_byte=read,
            maintenance_scans=maintenance_scans,
            read_usd_per_byte=read,
            write_usd_per_byte=tier.write_usd_per_request / _PART_BYTES,
            scan_bytes_per_s=tier.bytes_per_s or cls().scan_bytes_per_s,
            source=f"{tier.name}, {tier.price_date}: {tier.source}; reads at 5 USD per TB besides",
        )

    def keep_usd_month(self, num_bytes: float) -> float:
        """Return dollars a month for a table that is kept.

        Args:
            num_bytes: its size.

        Returns:
            Storage and maintenance.
        """
        scans = self.maintenance_usd_per_byte * self.maintenance_scans
        return num_bytes * (self.storage_usd_per_byte_month + scans)

    def rebuild_usd(self, parent_bytes: float, num_bytes: float) -> float:
        """Return dollars of rebuilding a table once.

        Args:
            parent_bytes: size of the table that is read.
            num_bytes: size of the one that is written.

        Returns:
            Reading and writing.
        """
        return parent_bytes * self.read_usd_per_byte + num_bytes * self.write_usd_per_byte

    def latency_s(self, parent_bytes: float) -> float:
        """Return seconds that a rebuild takes to read its parent.

        Args:
            parent_bytes: size of the table that is read.

        Returns:
            Seconds.
        """
        return parent_bytes / self.scan_bytes_per_s
