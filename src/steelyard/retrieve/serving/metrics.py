"""Counters and histograms of a search service in Prometheus' format."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from steelyard.retrieve.serving.service import FoundInShards, SearchService
from steelyard.retrieve.serving.watch import RecallWatch
from steelyard.retrieve.serving.wire import ShardAbout

__all__ = ["RetrieveMetrics"]

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class RetrieveMetrics:
    """Counters, gauges and histograms of one service, in a registry of their own.

    Attributes:
        requests: requests by route and status.
        waiting: queries that wait for their turn.
        vectors: vectors in the shards that answer.
    """

    def __init__(self) -> None:
        """Start at zero."""
        made = self._registry = CollectorRegistry()
        self.requests = Counter(
            "steelyard_retrieve_requests", "Requests.", ["route", "status"], registry=made
        )
        self.waiting = Gauge(
            "steelyard_retrieve_waiting_queries", "Queries that wait.", registry=made
        )
        self.vectors = Gauge(
            "steelyard_retrieve_vectors", "Vectors in the shards that answer.", registry=made
        )
        self._down = Gauge(
            "steelyard_retrieve_shards_down", "Shards that do not answer.", registry=made
        )
        self._restarts = Gauge(
            "steelyard_retrieve_shard_restarts", "Times a shard was started again.", registry=made
        )
        self._seconds = Histogram(
            "steelyard_retrieve_search_seconds",
            "Time of a batch in the index.",
            buckets=_SECONDS,
            registry=made,
        )
        self._batch = Histogram(
            "steelyard_retrieve_batch_queries",
            "Queries answered together.",
            buckets=_QUERIES,
            registry=made,
        )
        self._partial = Counter(
            "steelyard_retrieve_partial", "Queries that a shard did not answer.", registry=made
        )
        self._recall = Gauge(
            "steelyard_retrieve_recall",
            "Share of true neighbours in the last answers that were checked.",
            registry=made,
        )
        self._recall.set(float("nan"))
        self._checked = Gauge(
            "steelyard_retrieve_checked_queries", "Answers that were checked.", registry=made
        )

    def note(self, queries: int, seconds: float, found: FoundInShards) -> None:
        """Count a batch.

        Args:
            queries: how many it had.
            seconds: time it took.
            found: what was found.
        """
        self.note_search(queries, seconds)
        if found.missing:
            self._partial.inc(queries)

    def note_search(self, queries: int, seconds: float) -> None:
        """Count a search that no shard can miss.

        Args:
            queries: how many it had.
            seconds: time it took.
        """
        self._seconds.observe(seconds)
        self._batch.observe(queries)

    def note_shards(self, reached: Sequence[ShardAbout], service: SearchService) -> None:
        """Take over how shards are.

        Args:
            reached: what those hold that answer.
            service: that of the shards.
        """
        self.vectors.set(sum(about.size for about in reached))
        self._down.set(service.num_shards - len(reached))
        self._restarts.set(service.num_restarts)

    def note_recall(self, watch: RecallWatch) -> None:
        """Take over what a watch has found so far."""
        self._recall.set(watch.recall)
        self._checked.set(watch.num_checked)

    def text(self) -> bytes:
        """Return all in Prometheus' text format."""
        return generate_latest(self._registry)
