"""Parameters that differ between groups of points while the rest is shared."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array, Derivatives, Term, Transform

__all__ = ["Grouped"]


@dataclass(frozen=True)
class Grouped(Term):
    """A term some of whose parameters have a value per group, such as one intercept per task.

    The input "group" holds the group's number, 1..G.

    Attributes:
        base: the term.
        vary: parameters of the base with a value per group, named "parameter[group]".
        groups: names of the G groups.
    """

    base: Term
    vary: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def transforms(self) -> dict[str, Transform]:
        """Shared parameters, and one per group of each that varies."""
        kinds = self.base.transforms
        free: dict[str, Transform] = {
            name: kind for name, kind in kinds.items() if name not in self.vary
        }
        free |= {f"{name}[{group}]": kinds[name] for name in self.vary for group in self.groups}
        return free

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of the base, and the group's number."""
        return (*self.base.inputs, "group")

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the base with each point's own parameters, [S, n]; see `Term.evaluate`."""
        number = np.rint(inputs["group"]).astype(np.int64) - 1
        own = dict(theta)
        for name in self.vary:
            own[name] = np.concatenate(
                [np.atleast_2d(theta[f"{name}[{group}]"]) for group in self.groups], axis=1
            )[:, number]
        log, slopes = self.base.evaluate(own, inputs)
        derivatives: Derivatives = {
            name: slope for name, slope in slopes.items() if name not in self.vary
        }
        for name in self.vary:
            # A group's own parameter moves the points of that group only.
            for index, group in enumerate(self.groups):
                derivatives[f"{name}[{group}]"] = slopes[name] * (number == index)
        return log, derivatives

    def numbers(self, labels: Array) -> Array:
        """Turn names of groups into their numbers; numbers stay as they are.

        Args:
            labels: names or numbers, [n].

        Returns:
            Numbers 1..G, [n].

        Raises:
            FitError: a name or number is not one of the groups.
        """
        known = {group: index + 1.0 for index, group in enumerate(self.groups)}
        hint = f"groups: {', '.join(self.groups)}"
        try:
            # Names go first: a group may be called "2".
            numbers = [
                known[str(label)] if str(label) in known else float(label)
                for label in np.atleast_1d(labels)
            ]
        except ValueError as error:
            raise FitError(f"unknown group ({error})", hint=hint) from error
        if any(number not in known.values() for number in numbers):
            raise FitError(f"group numbers must lie in 1..{len(self.groups)}", hint=hint)
        return np.array(numbers)
