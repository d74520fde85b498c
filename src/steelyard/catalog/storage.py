"""Facts about storage: what keeping, asking for and reading data costs, and how fast it comes."""

from dataclasses import dataclass

__all__ = ["StorageTier"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageTier:
    """A kind of storage; prices are list prices of one region, a gigabyte is 10^9 bytes.

    Attributes:
        name: catalog name.
        vendor: who rents it out.
        region: place whose prices these are.
        schemes: beginnings of addresses that lead to it, such as "s3".
        usd_per_gb_month: price of keeping a gigabyte for a month, 0 when unknown.
        read_usd_per_request: price of a request that reads.
        write_usd_per_request: price of a request that writes.
        retrieval_usd_per_gb: price of a gigabyte that is read, wherever it goes.
        egress_usd_per_gb: price of a gigabyte that leaves the vendor's network for the internet;
            reading within the region has none.
        least_days: days that are paid for even where an object is deleted sooner.
        first_byte_s: usual time from a request to the first byte of its answer.
        bytes_per_s: usual rate of one connection, or of a drive.
        reads_per_s: random reads of 4 KiB per second at a deep queue, 0 when unknown or not a
            drive's.
        depth: reads under way at once that reach that rate, 0 when unknown.
        price_date: month of the prices.
        confidence: high, medium, unsure or measured.
        source: price list or documentation where the facts stand.
    """

    name: str
    vendor: str
    region: str = ""
    schemes: tuple[str, ...] = ()
    usd_per_gb_month: float = 0.0
    read_usd_per_request: float = 0.0
    write_usd_per_request: float = 0.0
    retrieval_usd_per_gb: float = 0.0
    egress_usd_per_gb: float = 0.0
    least_days: int = 0
    first_byte_s: float = 0.0
    bytes_per_s: float = 0.0
    reads_per_s: float = 0.0
    depth: int = 0
    price_date: str = ""
    confidence: str = "medium"
    source: str = ""

    def read_usd(self, num_bytes: float, requests: float, *, leaves: bool) -> float:
        """Return the price of reading.

        Args:
            num_bytes: bytes that are read.
            requests: requests that ask for them.
            leaves: whether they leave the vendor's network.

        Returns:
            USD; keeping the data is not part of it.
        """
        per_gb = self.retrieval_usd_per_gb + (self.egress_usd_per_gb if leaves else 0.0)
        return requests * self.read_usd_per_request + num_bytes / 1e9 * per_gb
