"""What a retriever is made of, and what its stages cost."""

from dataclasses import dataclass

from steelyard.errors import require

__all__ = ["DocumentIndex", "RetrieverLoad", "TowerOption", "TrainingPlan", "training_flops"]


@dataclass(frozen=True, kw_only=True)
class RetrieverLoad:
    """What a retriever has to carry.

    Attributes:
        documents: texts in the index.
        queries_per_s: rate of queries.
        p95_s: deadline that 95 % of the queries keep.
        recall: share of the exact neighbours that the index must find.
        budget_usd: money for training, encoding and the hours of service; 0 for no limit.
        hours: hours of service that count.
        usd_per_core_hour: price of a core.
        memory_bytes: memory for the index; 0 for no limit.
    """

    documents: int
    queries_per_s: float
    p95_s: float
    recall: float = 0.9
    budget_usd: float = 0.0
    hours: float = 720.0
    usd_per_core_hour: float = 0.04
    memory_bytes: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no load has.

        Raises:
            ConfigError: a number is out of range.
        """
        require(
            self,
            documents=(self.documents >= 1, "1 or more"),
            queries_per_s=(self.queries_per_s > 0, "above 0"),
            p95_s=(self.p95_s > 0, "above 0"),
            recall=(0 < self.recall <= 1, "above 0 to 1"),
            budget_usd=(self.budget_usd >= 0, "0 or more"),
            hours=(self.hours >= 0, "0 or more"),
            usd_per_core_hour=(self.usd_per_core_hour >= 0, "0 or more"),
            memory_bytes=(self.memory_bytes >= 0, "0 or more"),
        )


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How much of everything the stages see.

    Attributes:
        pairs: labelled pairs that differ.
        epochs: times that each is seen.
        hard_negatives: mined documents of a pair.
        query_tokens: tokens of a query.
        document_tokens: tokens of a document.
        distilled_texts: texts without labels that the student sees, repeats included.
        unique_texts: those that differ; the teacher encodes each once.
    """

    pairs: int
    epochs: float = 4.0
    hard_negatives: int = 0
    query_tokens: int = 16
    document_tokens: int = 128
    distilled_texts: int = 100_000
    unique_texts: int = 100_000


@dataclass(frozen=True, kw_only=True)
class TowerOption:
    """A size of tower.

    Attributes:
        name: what people call it.
        parameters: its parameters without embeddings.
    """

    name: str
    parameters: int

    def query_flops(self, training: TrainingPlan) -> float:
        """Return operations of encoding one query: two for each parameter and token."""
        return 2.0 * self.parameters * training.query_tokens


@dataclass(frozen=True, kw_only=True)
class DocumentIndex:
    """An index of the load's documents.

    Attributes:
        name: what people call it.
        recall: share of the exact neighbours that it finds.
        memory_bytes: bytes that it holds.
        median_s: seconds that half of the searches stay below, on one core.
        tail: ratio of the 95th percentile to that.
        kind: what `steelyard retrieve build --kind` calls it.
    """

    name: str
    recall: float
    memory_bytes: float
    median_s: float
    tail: float = 1.0
    kind: str = "flat"


def training_flops(
    training: TrainingPlan, teacher: TowerOption, student: TowerOption, documents: int
) -> float:
    """Return operations of all that is done before the first query is served.

    Args:
        training: what the stages see.
        teacher: shape of both large towers.
        student: tower of queries that serves; the teacher itself needs no distillation.
        documents: texts that are encoded for the index.

    Returns:
        6 (N T_q + N T_d (1 + H)) for each pair seen, (2 N T_q) for each text that the teacher
        encodes, 6 N_s T_q for each that the student sees, and 2 N T_d for each document.

    Source: Xia et al. 2024 (ScalingNote, arXiv 2411.15766), stages; 6 N D: Kaplan et al. 2020
        (arXiv 2001.08361), section 2.1.
    """
    per_pair = training.query_tokens + training.document_tokens * (1 + training.hard_negatives)
    flops = 6.0 * teacher.parameters * per_pair * training.pairs * training.epochs
    flops += 2.0 * teacher.parameters * training.document_tokens * documents
    if student.parameters < teacher.parameters:
        seen = 6.0 * student.parameters * training.distilled_texts
        flops += (2.0 * teacher.parameters * training.unique_texts + seen) * training.query_tokens
    return flops
