"""Membership: who is in, until when each is believed, and the epoch that every change begins.

Both classes are told the time and do no I/O, so that real processes and simulations share them.
Times are seconds of one monotonic clock, that of whoever holds the table; clocks of different
machines are never compared.
"""

from dataclasses import dataclass

from steelyard.errors import ConfigError, StoreError

__all__ = ["Lease", "LeaseTable", "Member", "MemberGroup"]


@dataclass(slots=True)
class Member:
    """One member of a group.

    Attributes:
        name: name of the member.
        boot: number that its process drew when it began; another one is another process.
        last_beat_s: when it was last heard.
        epoch: epoch that began with its joining.
    """

    name: str
    boot: int
    last_beat_s: float
    epoch: int


class MemberGroup:
    """Members by name, with heartbeats and epochs.

    A member that is heard at t may believe itself a member until t + lease on its own clock,
    counted from when it spoke. It is evicted no earlier than that after it was heard, so that it
    knows first.

    Attributes:
        epoch: number of changes of membership so far.
        lease_s: seconds that a heartbeat is good for.
        members: members by their names.
    """

    def __init__(self, *, lease_s: float, epoch: int = 0) -> None:
        """Start without members.

        Args:
            lease_s: seconds that a heartbeat is good for; above 0.
            epoch: where to count on from, that of an earlier holder of the table.

        Raises:
            ConfigError: the lease is not above 0.
        """
        if not lease_s > 0:
            raise ConfigError(f"lease_s is {lease_s}, but must be above 0", hint="such as 2")
        self.lease_s, self.epoch = lease_s, epoch
        self.members: dict[str, Member] = {}

    def beat(self, name: str, boot: int, now_s: float) -> bool:
        """Hear a member, which joins when it is new or another process than before.

        Args:
            name: name of the member.
            boot: number of its process.
            now_s: when it was heard.

        Returns:
            Whether it joined, and so began an epoch.
        """
        known = self.members.get(name)
        if known is None or known.boot != boot:
            self.epoch += 1
            self.members[name] = Member(name, boot, now_s, self.epoch)
            return True
        known.last_beat_s = max(known.last_beat_s, now_s)
        return False

    def lease_end_s(self, name: str) -> float:
        """Return when a member surely believes itself none; minus infinity for a stranger."""
        known = self.members.get(name)
        return known.last_beat_s + self.lease_s if known else float("-inf")

    def silent(self, now_s: float) -> list[str]:
        """Return members whose leases are over, in the order of their names."""
        return sorted(name for name in self.members if self.lease_end_s(name) < now_s)

    def evict(self, name: str, now_s: float) -> int:
        """Remove a member whose lease is over.

        Args:
            name: name of the member.
            now_s: the time.

        Returns:
            The epoch that begins.

        Raises:
            StoreError: it is no member, or still believes itself one.
        """
        if name not in self.members or self.lease_end_s(name) >= now_s:
            raise StoreError(
                f"{name!r} cannot be evicted at {now_s:.3f} s: its lease ends at "
                f"{self.lease_end_s(name):.3f} s",
                hint="wait until the lease is over",
            )
        del self.members[name]
        self.epoch += 1
        return self.epoch


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to do something alone.

    Attributes:
        name: what is leased.
        holder: who holds it.
        epoch: rises with each change of the holder; what is done under it carries the number, so
            that work of an earlier holder can be refused.
        until_s: end, on the clock of the table.
    """

    name: str
    holder: str
    epoch: int
    until_s: float


class LeaseTable:
    """Leases by name; at most one holder of each at any time."""

    def __init__(self) -> None:
        """Start without leases."""
        self._held: dict[str, Lease] = {}

    def acquire(self, name: str, holder: str, now_s: float, duration_s: float) -> Lease | None:
        """Take or renew a lease.

        Args:
            name: what is leased.
            holder: who asks.
            now_s: the time.
            duration_s: seconds from now; above 0.

        Returns:
            The lease, of the same epoch when its holder renews it in time; None while another
            holds it.
        """
        held = self._held.get(name)
        epoch = held.epoch if held else 0
        if held is None or held.until_s < now_s:
            # A holder that comes late begins a new epoch: another might have held it in between.
            epoch += 1
        elif held.holder != holder:
            return None
        lease = Lease(name, holder, epoch, now_s + duration_s)
        self._held[name] = lease
        return lease

    def release(self, lease: Lease) -> None:
        """End a lease early; one that another has taken since stays."""
        held = self._held.get(lease.name)
        if held is not None and (held.holder, held.epoch) == (lease.holder, lease.epoch):
            self._held[lease.name] = Lease(held.name, held.holder, held.epoch, float("-inf"))
