"""What the controller of shards may do, and when it does it."""

from dataclasses import dataclass

from steelyard.errors import require

__all__ = ["Adaptive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptive:
    """Parts of the policy, each of which can be switched off, and their numbers.

    Attributes:
        temporal: keep classes of shards by their use: cold ones are coded and leave memory.
        replicate: give shards as many replicas as their load, and the measured availability of
            their nodes, need.
        regenerate: all survivors rebuild a share of what a lost node held; off, one of them
            rebuilds everything.
        predict: move by the load of one horizon ahead, not only by that of now.
        balance: move, split and merge shards by load at all.
        replicas: fewest copies of a shard in memory, at least 1.
        hot_replicas: copies of a hot shard, at least `replicas`.
        most_replicas: most copies that load or availability may ask for.
        availability: share of time that some copy of a shard has to be up, in [0, 1).
        code: fragments of data and parity of a cold shard.
        eps: a node may have so much more than the mean load, above 0.
        window_s: seconds over which rates are taken.
        half_life_s: seconds after which a rate counts half.
        cold_after_s: seconds without access after which a shard is cold.
        period_s: seconds of a daily cycle, in this store's time.
        num_bins: windows of the profile over a period.
        horizon_s: how far ahead the load is forecast.
        move_cost: what moving all bytes of a mean node costs, in squared mean loads times seconds:
            a move is made when the unevenness that it would have taken away adds up to its cost.
        moves_at_once: copies that a node sends, and that it receives, at a time.
        most_shards: no shard is split beyond so many shards.
        lease_s: seconds for which a node that was heard may serve.
        ping_s: seconds between pings.
        suspicion: time-out of a suspect, in pings times the logarithm of the number of nodes.

    Raises:
        ConfigError: a number is out of range.
    """

    temporal: bool = True
    replicate: bool = True
    regenerate: bool = True
    predict: bool = True
    balance: bool = True
    replicas: int = 2
    hot_replicas: int = 3
    most_replicas: int = 8
    availability: float = 0.999
    code: tuple[int, int] = (4, 2)
    eps: float = 0.25
    window_s: float = 1.0
    half_life_s: float = 60.0
    cold_after_s: float = 300.0
    period_s: float = 120.0
    num_bins: int = 24
    horizon_s: float = 5.0
    move_cost: float = 40.0
    moves_at_once: int = 2
    most_shards: int = 4096
    lease_s: float = 1.5
    ping_s: float = 0.25
    suspicion: float = 4.0

    def __post_init__(self) -> None:
        most = f"in [{self.replicas}, {self.most_replicas}]"
        is_ordered = self.replicas <= self.hot_replicas <= self.most_replicas
        require(
            self,
            replicas=(self.replicas >= 1, "at least 1"),
            hot_replicas=(is_ordered, most),
            availability=(0 <= self.availability < 1, "in [0, 1)"),
            code=(min(self.code) >= 1, "two counts of at least 1"),
            eps=(self.eps > 0, "above 0"),
            window_s=(self.window_s > 0, "above 0"),
            half_life_s=(self.half_life_s > 0, "above 0"),
            period_s=(self.period_s > 0, "above 0"),
            num_bins=(self.num_bins >= 1, "at least 1"),
            horizon_s=(self.horizon_s >= 0, "at least 0"),
            moves_at_once=(self.moves_at_once >= 1, "at least 1"),
            lease_s=(self.lease_s > 2 * self.ping_s, "above two pings"),
            ping_s=(self.ping_s > 0, "above 0"),
        )
