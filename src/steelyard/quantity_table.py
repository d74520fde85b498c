"""The table of named quantities: one definition, unit and direction for the whole package."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["QUANTITIES", "Quantity"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A defined, unit-bearing metric.

    Attributes:
        name: dotted, `room.metric`.
        unit: SI base unit, one of `steelyard.units.UNITS`.
        better: which direction is good; "neither" for plain sizes.
        definition: one sentence.
    """

    name: str
    unit: str
    better: Literal["lower", "higher", "neither"]
    definition: str


# Units are SI base units, so that a plan and a measurement are compared without conversion. Where
# the literature has two definitions, the sentence says which one counts: MFU without recomputation,
# TPOT without the first token, memory beyond what the process held before.
_ROWS: tuple[tuple[str, str, Literal["lower", "higher", "neither"], str], ...] = (
    (
        "eval.loss",
        "nat/token",
        "lower",
        "Mean cross-entropy per predicted token on held-out documents.",
    ),
    (
        "eval.bits_per_byte",
        "bit/byte",
        "lower",
        "Held-out cross-entropy in bits divided by the UTF-8 bytes it predicts.",
    ),
    (
        "eval.recall",
        "fraction",
        "higher",
        "Share of questions about a context whose every answer token was the likeliest.",
    ),
    (
        "train.loss",
        "nat/token",
        "lower",
        "Mean cross-entropy per predicted token of a training batch, before its update.",
    ),
    (
        "train.step_time",
        "s",
        "lower",
        "Wall time of one optimizer step, data loading included, evaluation and checkpoints "
        "excluded.",
    ),
    (
        "train.total_time",
        "s",
        "lower",
        "Wall time of all optimizer steps of a run, evaluation and checkpoints excluded.",
    ),
    (
        "network.collective_time",
        "s",
        "lower",
        "Time from the start of a collective to the arrival of its last byte.",
    ),
    ("hpl.rate", "FLOP/s", "higher", "Rmax: fp64 operations of HPL, 2/3 N^3, over its time."),
    ("hpl.duration", "s", "lower", "Time of one HPL run from the first panel to the last."),
    ("hpl.power", "W", "lower", "Mean power of the nodes during HPL, facility overhead excluded."),
    ("hpcg.rate", "FLOP/s", "higher", "Operations of HPCG over its time, as its list ranks them."),
    (
        "stencil.efficiency",
        "fraction",
        "higher",
        "Time of a stencil's step on one node over that on all, as many sites per accelerator.",
    ),
    ("stencil.rate", "site/s", "higher", "Sites of a grid that are updated per second."),
    (
        "study.wall_time",
        "s",
        "lower",
        "Wall time of a study's calls, from the first cell's begin to the last one's end.",
    ),
    ("train.throughput", "token/s", "higher", "Tokens trained on per second of step time."),
    (
        "train.mfu",
        "fraction",
        "higher",
        "Model FLOPs (6N plus attention) per second over the peak dense FLOP/s of the dtype used.",
    ),
    (
        "train.goodput",
        "fraction",
        "higher",
        "Share of a run's wall time that is kept work: not saving, restarting or doing work again.",
    ),
    (
        "train.peak_memory",
        "byte",
        "lower",
        "Largest memory held for the run beyond what the process held before the model was built.",
    ),
    (
        "train.flops",
        "FLOP",
        "neither",
        "Model FLOPs of the run: 6 per matrix parameter and token plus attention.",
    ),
    ("train.tokens", "token", "neither", "Tokens trained on, repeats counted."),
    (
        "train.noise_scale",
        "count",
        "neither",
        "Trace of the covariance of one example's gradient over the squared norm of the mean "
        "gradient, towards the end of a run, in examples.",
    ),
    (
        "model.parameters",
        "parameter",
        "neither",
        "All parameters, embeddings and head counted once when tied.",
    ),
    (
        "model.parameters_non_embedding",
        "parameter",
        "neither",
        "Parameters without token and position embeddings and without the head.",
    ),
    ("model.weights_memory", "byte", "lower", "Bytes of all weights in their stored dtype."),
    (
        "serve.ttft",
        "s",
        "lower",
        "Time from a request's arrival to its first output token, mean over requests.",
    ),
    (
        "serve.ttft_p95",
        "s",
        "lower",
        "95th percentile over requests of arrival to first output token.",
    ),
    (
        "serve.tpot",
        "s/token",
        "lower",
        "(Last - first token time) / (output tokens - 1) per request, mean over requests.",
    ),
    (
        "serve.throughput",
        "token/s",
        "higher",
        "Output tokens per second from the first arrival to the last token.",
    ),
    (
        "serve.optimal_throughput",
        "token/s",
        "higher",
        "Prompt and output tokens per second and device if the bottleneck never idles.",
    ),
    (
        "serve.request_rate",
        "request/s",
        "higher",
        "Finished requests per second from the first arrival to the last token.",
    ),
    (
        "serve.e2e_latency",
        "s",
        "lower",
        "Time from a request's arrival to its last token, mean over requests.",
    ),
    (
        "serve.effective_context",
        "token",
        "higher",
        "Longest context that fits into memory and from which questions are answered.",
    ),
    (
        "serve.kv_utilization",
        "fraction",
        "higher",
        "Token states held over pool slots reserved, mean over steps with work.",
    ),
    (
        "serve.kv_bytes_per_token",
        "byte",
        "lower",
        "Key and value bytes kept per token over all layers.",
    ),
    (
        "serve.goodput",
        "request/s",
        "higher",
        "Highest rate at which the wanted share of requests keeps its limits on TTFT and TPOT.",
    ),
    (
        "serve.slo_attainment",
        "fraction",
        "higher",
        "Share of requests that keep the limits on both TTFT and TPOT.",
    ),
    ("serve.makespan", "s", "lower", "Time from the first arrival to the last token of a trace."),
    (
        "run.energy",
        "J",
        "lower",
        "Electric energy of all machines for the run, facility overhead included.",
    ),
    (
        "run.cost",
        "USD",
        "lower",
        "Money for the run: machine hours times price, or amortized hardware plus energy, as its "
        "source says.",
    ),
    ("run.carbon", "g", "lower", "Operational carbon dioxide equivalent of the run's energy."),
    ("run.duration", "s", "lower", "Wall time from a run's start to its end, everything included."),
    (
        "run.interruptions",
        "count",
        "lower",
        "Failures that a run restarts from, from its start to its end.",
    ),
    ("plan.num_accelerators", "count", "lower", "Accelerators the plan occupies."),
    (
        "plan.memory_per_accelerator",
        "byte",
        "lower",
        "Largest memory one accelerator of the plan holds.",
    ),
    ("machine.matmul", "FLOP/s", "higher", "Rate of a large square matrix product."),
    (
        "machine.attention",
        "FLOP/s",
        "higher",
        "Rate of fused causal attention, forward and backward; masked pairs are not counted.",
    ),
    (
        "machine.elementwise",
        "byte/s",
        "higher",
        "Bytes read and written per second by activation and softmax, forward and backward.",
    ),
    (
        "machine.stream",
        "byte/s",
        "higher",
        "Memory bandwidth of a stream over a working set far beyond the caches.",
    ),
    (
        "machine.gather",
        "byte/s",
        "higher",
        "Useful bytes per second of random row gathers from a table beyond the caches.",
    ),
    (
        "machine.disk_read",
        "byte/s",
        "higher",
        "Sequential read rate of a file, page cache bypassed where possible.",
    ),
    (
        "machine.disk_write",
        "byte/s",
        "higher",
        "Sequential write rate to a file, flushed to the device.",
    ),
    (
        "machine.link_latency",
        "s",
        "lower",
        "One-way time of a minimal message between two processes of this machine.",
    ),
    (
        "machine.link_bandwidth",
        "byte/s",
        "higher",
        "Rate of large messages between two processes of this machine.",
    ),
    ("machine.launch", "s", "lower", "Time to dispatch one small tensor operation."),
    (
        "operate.series_value",
        "1",
        "neither",
        "Value of a watched series at one step, in the unit of the series.",
    ),
    (
        "operate.demand",
        "1",
        "neither",
        "Mean load of a service in one step, in the unit of its record.",
    ),
    ("scan.bytes_read", "byte", "lower", "Bytes that one pass over a table reads from storage."),
    ("scan.duration", "s", "lower", "Wall time of one pass over a table."),
    (
        "scan.peak_memory",
        "byte",
        "lower",
        "Most memory that one pass over a table adds to what the process held before.",
    ),
    ("scan.cost", "USD", "lower", "Price of the requests and bytes of one pass over a table."),
    (
        "retrieve.query_time",
        "s",
        "lower",
        "Time of one search of an index of vectors on one thread, one query at a time.",
    ),
    (
        "retrieve.build_time",
        "s",
        "lower",
        "Time to train an index of vectors and to add all vectors, reading and saving left out.",
    ),
    (
        "retrieve.memory",
        "byte",
        "lower",
        "Bytes of everything that an index of vectors holds in memory.",
    ),
    (
        "retrieve.recall",
        "fraction",
        "higher",
        "Share of the k true nearest vectors among the k that a search returns.",
    ),
    (
        "retrieve.rerank_p50",
        "s",
        "lower",
        "Time of one query: candidates, reads and ranking by token vectors, median over queries.",
    ),
    ("retrieve.rerank_p95", "s", "lower", "95th percentile over queries of the same time."),
    (
        "retrieve.rerank_rate",
        "request/s",
        "higher",
        "Queries that one machine answers in a second with ranking by token vectors.",
    ),
    (
        "retrieve.rerank_memory",
        "byte",
        "lower",
        "Memory that searches with ranking by token vectors from a drive add to a process.",
    ),
    (
        "retrieve.rerank_hits",
        "fraction",
        "higher",
        "Share of the documents ranked by token vectors that was read before the search was over.",
    ),
    (
        "retrieve.index_time",
        "s",
        "lower",
        "Time to build an index of texts: reading, fitting an encoder, encoding and writing.",
    ),
    (
        "retrieve.search_p50",
        "s",
        "lower",
        "Median time of a search of an index of texts or vectors, one query at a time.",
    ),
    (
        "retrieve.search_p95",
        "s",
        "lower",
        "Time that 95 of 100 searches of an index of texts or vectors take at most, one at a time.",
    ),
    (
        "retrieve.search_rate",
        "request/s",
        "higher",
        "Searches of an index of texts or vectors per second when 64 are asked together.",
    ),
    ("data.documents", "count", "neither", "Documents kept after cleaning and deduplication."),
    ("data.tokens", "token", "neither", "Tokens in the training shards."),
    ("data.itemsets", "count", "neither", "Itemsets that enough baskets hold, the empty one not."),
    ("data.mining_time", "s", "lower", "Time to mine baskets in memory, reading left out."),
    ("data.mining_memory", "byte", "lower", "Memory of mined itemsets while they are made."),
    (
        "data.duplicate_fraction",
        "fraction",
        "lower",
        "Clean documents dropped as exact or near duplicates.",
    ),
)

QUANTITIES: dict[str, Quantity] = {row[0]: Quantity(*row) for row in _ROWS}
"""Every quantity by name."""
