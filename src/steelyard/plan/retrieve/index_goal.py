"""What an index is wanted for: vectors, tenants, recall, latency, memory, load."""

import re
from dataclasses import dataclass, replace

from steelyard.errors import ConfigError
from steelyard.units import parse

__all__ = ["IndexGoal", "parse_goal"]

_SIZES = re.compile(r"^([\d.]+\s*[kKMGT]?)\s*[x×*]\s*(\d+)$")
_FORMS = "'10 M x 768, 200 tenants, recall .95, 20 ms, 8 GB, 50 queries/s'"


@dataclass(frozen=True, kw_only=True)
class IndexGoal:
    """What is wanted.

    Attributes:
        vectors: vectors of all tenants.
        dim: numbers in a vector.
        tenants: tenants who share them; 1 for none.
        seen_by: tenants that see a vector, on average.
        recall: share of the ten nearest vectors to find.
        latency_s: longest time of a query without waiting.
        memory_bytes: memory of one machine for the index; 0 for as much as the machine has.
        queries_per_s: load to serve.
    """

    vectors: int
    dim: int
    tenants: int = 1
    seen_by: float = 1.0
    recall: float = 0.95
    latency_s: float = 0.02
    memory_bytes: float = 0.0
    queries_per_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what nobody can want."""
        if self.vectors < 1 or self.dim < 1 or not 1 <= self.tenants <= self.vectors:
            raise ConfigError(
                f"{self.vectors:,} vectors of {self.dim} numbers for {self.tenants:,} tenants",
                hint="give at least one of each, and no more tenants than vectors",
            )
        if not 0 < self.recall <= 1:
            raise ConfigError(f"a recall of {self.recall:g}", hint="give it above 0, up to 1")
        if min(self.latency_s, self.queries_per_s) <= 0 or self.memory_bytes < 0:
            raise ConfigError("a latency and a load must be above 0, memory 0 or more")
        if not 1 <= self.seen_by <= self.tenants:
            raise ConfigError(
                f"a vector seen by {self.seen_by:g} of {self.tenants:,} tenants",
                hint="give 1 to as many as there are",
            )

    @property
    def own_vectors(self) -> int:
        """Vectors that a tenant sees."""
        return max(1, round(self.vectors * self.seen_by / self.tenants))


def parse_goal(text: str) -> IndexGoal:
    """Read a goal in words.

    Args:
        text: parts separated by commas, in any order: vectors x numbers ("10 M x 768"), "200
            tenants", "recall .95", a time, bytes, "50 queries/s", "seen by 3".

    Returns:
        The goal.

    Raises:
        ConfigError: a part cannot be read or is there twice, or vectors and numbers are missing.
    """
    goal = IndexGoal(vectors=1, dim=1)
    is_sized = False
    later: dict[str, float] = {}
    for part in (piece.strip() for piece in text.split(",") if piece.strip()):
        if sizes := _SIZES.match(part):
            count = round(parse(sizes[1].replace(" ", ""), "count", where="the vectors"))
            goal, is_sized = replace(goal, vectors=count, dim=int(sizes[2])), True
        else:
            found = _part(part)
            if found.keys() & later.keys():
                raise ConfigError(
                    f"{text!r} says {part!r} beside another of its kind", hint="leave one out"
                )
            later |= found
    if not is_sized:
        raise ConfigError(f"{text!r} names no vectors", hint=f"write it like {_FORMS}")
    whole = {name: round(value) for name, value in later.items() if name == "tenants"}
    return replace(goal, **{**later, **whole})


def _part(part: str) -> dict[str, float]:
    """Return one part that is not the sizes."""
    words = part.lower().split()
    try:
        if words[-1].startswith("tenant"):
            return {"tenants": parse("".join(words[:-1]), "count", where=part)}
        if words[0] == "recall":
            told = "".join(words[1:])
            return {"recall": float(told[:-1]) / 100 if told.endswith("%") else float(told)}
        if words[:2] == ["seen", "by"]:
            return {"seen_by": float(words[2])}
        if words[-1] in ("queries/s", "qps", "requests/s"):
            return {"queries_per_s": parse("".join(words[:-1]), "count", where=part)}
    except (ValueError, IndexError) as error:
        raise ConfigError(f"cannot read {part!r}", hint=f"write it like {_FORMS}") from error
    for unit, name in (("s", "latency_s"), ("byte", "memory_bytes")):
        try:
            return {name: parse(part, unit, where=part)}
        except ConfigError:
            continue
    raise ConfigError(f"cannot read {part!r}", hint=f"write it like {_FORMS}")
