"""What the numbers of a table of runs mean: counting, unit of loss, tokenizer, schedule.

A convention that nobody stated is "unstated"; it never turns into a default. Published laws of
language models differ by more through these conventions than through their data: counting
parameters without embeddings bends every curve at small sizes.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError

__all__ = ["ALLOWED", "COLUMN_OF", "UNSTATED", "Conventions", "Words", "name_rows"]

Words = NDArray[np.str_]
UNSTATED = "unstated"
ALLOWED: dict[str, tuple[str, ...]] = {
    "counts": ("total", "non-embedding", "non-embedding+head", "active", "active-non-embedding"),
    "loss_unit": ("nat/token", "bit/token", "bit/byte", "nat/byte", "error fraction"),
    "tokenizer": (),
    "schedule": ("finished", "unfinished"),
}
"""Values of each convention; a tokenizer may have any name. "finished" losses were taken at the end
of their learning-rate schedule."""

COLUMN_OF = {"counts": "parameters", "loss_unit": "loss", "tokenizer": "loss", "schedule": "loss"}
_SPELLINGS = {
    "schedule": dict.fromkeys(("true", "1", "1.0", "yes", "done"), "finished")
    | dict.fromkeys(("false", "0", "0.0", "no"), "unfinished"),
    "loss_unit": {
        f"{unit}s/{per}": f"{unit}/{per}" for unit in ("nat", "bit") for per in ("token", "byte")
    },
}


def name_rows(rows: Sequence[int] | NDArray[np.int64]) -> str:
    """Name up to five rows for a message, such as "rows 3, 7 and 12 more"."""
    shown = ", ".join(str(row) for row in rows[:5])
    return f"row{'s' if len(rows) > 1 else ''} {shown}" + (
        f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Conventions:
    """What each row's numbers mean, [n] words each.

    Attributes:
        counts: parameters that "parameters" counts.
        loss_unit: unit of "loss".
        tokenizer: what a token is.
        schedule: whether the loss was taken at the end of the learning-rate schedule.
    """

    counts: Words
    loss_unit: Words
    tokenizer: Words
    schedule: Words

    @classmethod
    def checked(
        cls, count: int, given: Mapping[str, str | Words], rows: NDArray[np.int64]
    ) -> "Conventions":
        """Repeat single words, unify spellings and refuse words that are not allowed.

        Args:
            count: rows of the table.
            given: one word, or one per row, by convention; a missing one is "unstated".
            rows: numbers of the rows in their source, for messages.

        Returns:
            One word per row and convention.

        Raises:
            FitError: an unknown word; the column, the row and near words are named.
        """
        columns = {}
        for name, allowed in ALLOWED.items():
            stated = np.asarray(given.get(name, UNSTATED), dtype=np.str_)
            plain = np.char.strip(np.broadcast_to(stated, (count,)))
            # Names of tokenizers are the user's own; all other words come from a short list.
            plain = plain if name == "tokenizer" else np.char.lower(plain)
            unified = [_SPELLINGS.get(name, {}).get(word, word) for word in plain.tolist()]
            columns[name] = np.array([word or UNSTATED for word in unified], dtype=np.str_)
            wrong = np.flatnonzero(~np.isin(columns[name], (*allowed, UNSTATED)) & bool(allowed))
            if len(wrong):
                word = str(columns[name][wrong[0]])
                near = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
                raise FitError(
                    f"{name} {word!r} in {name_rows(rows[wrong])} is not known",
                    hint=f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(allowed)}",
                )
        return cls(**columns)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "Conventions":
        """Keep some rows."""
        return Conventions(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})

    def one(self, name: str, rows: NDArray[np.int64]) -> str:
        """Return the word that all rows share.

        Args:
            name: name of the convention.
            rows: numbers of the rows in their source.

        Returns:
            The word; "unstated" when no row states one.

        Raises:
            FitError: rows differ; the column and the rows of the rarest word are named.
        """
        words, place, counts = np.unique(
            getattr(self, name), return_inverse=True, return_counts=True
        )
        if len(words) == 1:
            return str(words[0])
        rare = int(counts.argmin())
        hints = {
            "counts": "convert with table.to_counts('total', ...), or keep one kind with "
            "table.where(counts=...)",
            "loss_unit": "convert with table.to_loss_unit('bit/byte', ...)",
            "tokenizer": "losses per token of two tokenizers do not compare: "
            "table.to_loss_unit('bit/byte', bytes_per_token={...})",
            "schedule": "a loss in mid-schedule is not a final one: keep "
            "table.where(schedule='finished')",
        }
        raise FitError(
            f"column {COLUMN_OF[name]} mixes {name} {' and '.join(words.tolist())}: "
            f"{name_rows(rows[place == rare])} "
            f"{'has' if counts[rare] == 1 else 'have'} {words[rare]}",
            hint=hints[name],
        )

    def refuse_mixed(self, column: str, rows: NDArray[np.int64]) -> None:
        """Refuse a column whose rows do not compare."""
        for name in (name for name, owner in COLUMN_OF.items() if owner == column):
            # Losses per byte of two tokenizers compare; those per token, or of no unit, do not.
            units = ("nat/token", "bit/token", UNSTATED)
            if name != "tokenizer" or self.one("loss_unit", rows) in units:
                self.one(name, rows)

    def described(self) -> dict[str, str]:
        """Name each convention's words, joined when there are several."""
        return {
            item.name: " and ".join(np.unique(getattr(self, item.name)).tolist())
            for item in fields(self)
        }
