"""Association rules: who holds these items also holds those, with what that is worth."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.mining.growing import reserve_long
from steelyard.data.mining.itemsets import Itemsets
from steelyard.errors import CapacityError, ConfigError
from steelyard.jit import njit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AssociationRules", "find_rules"]

METRICS = ("support", "confidence", "lift", "leverage", "conviction")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationRules:
    """Rules X -> Y between itemsets without a common item.

    Attributes:
        itemsets: what the rules speak of.
        antecedents: place of X among the itemsets, [rules].
        consequents: place of Y.
        support: share of the baskets that hold both.
        confidence: share of the baskets with X that hold Y.
        lift: confidence over the share of all baskets that hold Y.
        leverage: support less what it would be if X and Y were independent.
        conviction: share without Y over the share without Y where X is; infinite for confidence 1.
    """

    itemsets: Itemsets
    antecedents: NDArray[np.int64]
    consequents: NDArray[np.int64]
    support: NDArray[np.float64]
    confidence: NDArray[np.float64]
    lift: NDArray[np.float64]
    leverage: NDArray[np.float64]
    conviction: NDArray[np.float64]

    def __len__(self) -> int:
        """Return the number of rules."""
        return len(self.antecedents)

    def best(self, count: int, *, by: str = "lift") -> NDArray[np.int64]:
        """Return the places of the best rules.

        Args:
            count: most rules that are returned.
            by: one of support, confidence, lift, leverage, conviction.

        Returns:
            Places, the best first; of equal ones the more frequent.

        Raises:
            ConfigError: there is no such measure.
        """
        if by not in METRICS:
            raise ConfigError(f"no measure {by!r}", hint=f"measures are {', '.join(METRICS)}")
        return np.lexsort((-self.confidence, -self.support, -getattr(self, by)))[:count]

    def to_arrow(self) -> "pa.Table":
        """Return a table: antecedent and consequent as lists, and the measures."""
        import pyarrow as pa

        sides = {
            name: self.itemsets.take(places).to_arrow()["items"]
            for name, places in (("antecedent", self.antecedents), ("consequent", self.consequents))
        }
        return pa.table(sides | {name: pa.array(getattr(self, name)) for name in METRICS})


def find_rules(
    itemsets: Itemsets,
    min_confidence: float,
    *,
    min_lift: float = 0.0,
    max_consequent: int = 1,
    max_rules: int = 50_000_000,
) -> AssociationRules:
    """Find the rules that hold often enough.

    Args:
        itemsets: all frequent itemsets: closed or maximal ones lack supports that rules need.
        min_confidence: least confidence, in (0, 1].
        min_lift: least lift, 0 for any.
        max_consequent: most items of the right side.
        max_rules: rules above which the search ends with an error.

    Returns:
        The rules.

    Raises:
        ConfigError: a bound is not allowed, or the itemsets are not all frequent ones.
        CapacityError: there are more rules than allowed.

    Source: Agrawal and Srikant 1994 (confidence); dynamic itemset counting, SIGMOD 1997, section 4
    (lift, conviction); Piatetsky-Shapiro 1991 (leverage).
    """
    if not 0 < min_confidence <= 1 or min_lift < 0 or max_consequent < 1:
        raise ConfigError(
            f"rules of confidence {min_confidence}, lift {min_lift} and at most {max_consequent} "
            "items on the right cannot be asked for",
            hint="confidence in (0, 1], lift 0 or more, 1 item or more",
        )
    if itemsets.target != "frequent":
        raise ConfigError(
            f"rules need all frequent itemsets, and these are the {itemsets.target} ones",
            hint="mine with the target frequent",
        )
    draw = np.random.default_rng(2)
    marks = draw.integers(1, 1 << 63, int(itemsets.items.max(initial=0)) + 1, dtype=np.int64)
    found, is_whole = _found(
        (itemsets.begins, itemsets.items, itemsets.supports),
        marks,
        itemsets.num_baskets,
        (min_confidence * (1 - 1e-12), min_lift),
        max_consequent,
        max_rules,
    )
    if not is_whole:
        raise CapacityError(
            f"more than {max_rules:,} rules", hint="ask for more confidence, lift or support"
        )
    return _measured(itemsets, found)


def _measured(itemsets: Itemsets, found: NDArray[np.int64]) -> AssociationRules:
    """Compute the measures of rules: whole, antecedent and consequent by place."""
    total = max(itemsets.num_baskets, 1)
    both, left, right = (itemsets.supports[found[:, place]] / total for place in range(3))
    confidence: Any = both / left
    with np.errstate(divide="ignore", invalid="ignore"):
        conviction = np.where(confidence < 1, (1 - right) / (1 - confidence), np.inf)
    return AssociationRules(
        itemsets=itemsets,
        antecedents=found[:, 1],
        consequents=found[:, 2],
        support=both,
        confidence=confidence,
        lift=confidence / right,
        leverage=both - left * right,
        conviction=conviction,
    )


@njit()
def _placed(table, hashes, wanted):
    """Return the place of an itemset by its hash; 64 bits make a chance of 1e-5 for 20 million."""
    slot = wanted & (len(table) - 1)
    while table[slot] >= 0 and hashes[table[slot]] != wanted:
        slot = (slot + 1) & (len(table) - 1)
    return table[slot]


@njit()
def _found(sets, marks, total, least, max_consequent, max_rules):
    """Try each choice of a few items of each itemset as the right side."""
    begins, items, supports = sets
    count, size = len(supports), np.int64(1)
    while size < 2 * count:
        size *= 2
    table, hashes = np.full(size, -1, np.int64), np.zeros(count, np.int64)
    for row in range(count):
        for place in range(begins[row], begins[row + 1]):
            hashes[row] ^= marks[items[place]]
        slot = hashes[row] & (size - 1)
        while table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        table[slot] = row
    found, used = np.empty(3072, np.int64), 0
    chosen = np.empty(max_consequent + 1, np.int64)
    for row in range(count):
        begin, length = begins[row], begins[row + 1] - begins[row]
        for taken in range(1, min(max_consequent, length - 1) + 1):
            for place in range(taken):
                chosen[place] = place
            while True:
                part = np.int64(0)
                for place in range(taken):
                    part ^= marks[items[begin + chosen[place]]]
                left = _placed(table, hashes, hashes[row] ^ part)
                right = _placed(table, hashes, part)
                confidence = supports[row] / supports[left]
                lift = confidence * total / supports[right]
                if confidence >= least[0] and lift >= least[1]:
                    if used == max_rules:
                        return found[: 3 * used].reshape(used, 3), False
                    found = reserve_long(found, 3 * used + 3)
                    found[3 * used], found[3 * used + 1], found[3 * used + 2] = row, left, right
                    used += 1
                # The next choice in the order of a dictionary.
                at = taken - 1
                while at >= 0 and chosen[at] == length - taken + at:
                    at -= 1
                if at < 0:
                    break
                chosen[at] += 1
                for place in range(at + 1, taken):
                    chosen[place] = chosen[place - 1] + 1
    return found[: 3 * used].copy().reshape(used, 3), True
