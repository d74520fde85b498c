"""Which tables to keep so that keeping and rebuilding cost least.

This is an uncapacitated facility location: a table is kept, or rebuilt from one kept table; nothing
is rebuilt from what is deleted itself.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Retention", "greedy", "retain"]

_LARGEST_EXACT = 2000
"""Tables of a component up to which it is solved as an integer program."""
_TIME_LIMIT_S = 60.0


class Retention(NamedTuple):
    """Which tables are kept.

    Attributes:
        parents: table that each is rebuilt from, [tables]; -1 for those that are kept.
        cost: what this costs.
        bound: what no choice costs less than.
        is_exact: whether every part was solved to the end.
    """

    parents: NDArray[np.int64]
    cost: float
    bound: float
    is_exact: bool


class _RetentionProblem(NamedTuple):
    """Tables with their cost of keeping, and for each its parents with the cost of rebuilding."""

    keep: NDArray[np.float64]
    parents: list[dict[int, float]]
    locked: NDArray[np.bool_]


def retain(
    keep: Sequence[float],
    children: Sequence[int],
    parents: Sequence[int],
    costs: Sequence[float],
    *,
    locked: Sequence[int] = (),
    is_exact: bool = True,
) -> Retention:
    """Choose the tables to keep.

    Each weakly connected component is solved by itself: as an integer program where it has at most
    2,000 tables, else by `greedy` with the bound of the linear program.

    Args:
        keep: cost of keeping each table, [tables].
        children: table that could be rebuilt, [edges].
        parents: table that it could be rebuilt from, [edges].
        costs: cost of rebuilding it as often as it is asked for, [edges].
        locked: tables that must be kept.
        is_exact: solve integer programs; False takes the greedy choice everywhere.

    Returns:
        The choice.

    Source: R2D2 (arXiv 2312.13427), optimal retention.
    """
    problem = _RetentionProblem(
        np.asarray(keep, np.float64), [{} for _ in keep], np.zeros(len(keep), np.bool_)
    )
    problem.locked[list(locked)] = True
    for child, parent, cost in zip(children, parents, costs, strict=True):
        # A rebuild that costs as much as keeping the table is in no cheapest choice that is needed.
        if cost < problem.keep[child] and not problem.locked[child]:
            known = problem.parents[child].get(parent, np.inf)
            problem.parents[child][parent] = min(cost, known)
    chosen = np.full(len(problem.keep), -1, np.int64)
    bound, all_exact = 0.0, True
    for part in _components(problem):
        own, low, solved = _solve(problem, part, is_exact=is_exact)
        chosen[part] = own
        bound += low
        all_exact &= solved
    return Retention(chosen, _cost(problem, chosen), bound, all_exact)


def _cost(problem: _RetentionProblem, chosen: NDArray[np.int64]) -> float:
    """Return what a choice costs."""
    return float(
        sum(
            problem.keep[table] if parent < 0 else problem.parents[table][int(parent)]
            for table, parent in enumerate(chosen)
        )
    )


def _components(problem: _RetentionProblem) -> list[NDArray[np.int64]]:
    """Return the tables of each weakly connected component."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(problem.keep)
    pairs = [(child, parent) for child, own in enumerate(problem.parents) for parent in own]
    rows, columns = np.array(pairs, np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(pairs)), (rows, columns)), shape=(count, count))
    number, labels = connected_components(graph, directed=False)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=number))[:-1]
    return np.split(order, ends)


def _solve(
    problem: _RetentionProblem, part: NDArray[np.int64], *, is_exact: bool
) -> tuple[NDArray[np.int64], float, bool]:
    """Return parents of the tables of a component, a lower bound, and whether it is solved."""
    if len(part) == 1:
        return np.array([-1]), float(problem.keep[part[0]]), True
    if is_exact and len(part) <= _LARGEST_EXACT:
        return _program(problem, part, is_whole=True)
    chosen = greedy(problem.keep, problem.parents, problem.locked, part)
    _, bound, _ = _program(problem, part, is_whole=False)
    return chosen, bound, False


def _program(
    problem: _RetentionProblem, part: NDArray[np.int64], *, is_whole: bool
) -> tuple[NDArray[np.int64], float, bool]:
    """Solve the integer program of a component, or its linear relaxation for the bound alone."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    local = {int(table): place for place, table in enumerate(part)}
    edges = [
        (local[int(table)], local[parent], cost)
        for table in part
        for parent, cost in problem.parents[table].items()
    ]
    tables, count = len(part), len(edges)
    child, parent = (np.array([edge[side] for edge in edges], np.int64) for side in (0, 1))
    numbers = np.arange(count)
    # Each table is kept or rebuilt from one parent; and only from one that is kept.
    once = coo_array(
        (
            np.ones(tables + count),
            (np.concatenate([np.arange(tables), child]), np.arange(tables + count)),
        ),
        shape=(tables, tables + count),
    )
    kept = coo_array(
        (
            np.concatenate([np.ones(count), -np.ones(count)]),
            (np.concatenate([numbers, numbers]), np.concatenate([tables + numbers, parent])),
        ),
        shape=(count, tables + count),
    )
    # The solver's tolerances are absolute: dollars of small tables would all be nothing to it.
    scale = float(problem.keep[part].max()) or 1.0
    low = np.concatenate([problem.locked[part].astype(float), np.zeros(count)])
    solved = milp(
        np.concatenate([problem.keep[part], [edge[2] for edge in edges]]) / scale,
        constraints=[LinearConstraint(once, 1, 1), LinearConstraint(kept, -np.inf, 0)],
        bounds=Bounds(low, np.ones(tables + count)),  # pyright: ignore[reportArgumentType]
        integrality=np.full(tables + count, int(is_whole)),
        options={"time_limit": _TIME_LIMIT_S, "mip_rel_gap": 0.0},
    )
    if solved.x is None or not is_whole:
        bound = scale * float(solved.fun) if solved.x is not None else 0.0
        return greedy(problem.keep, problem.parents, problem.locked, part), bound, False
    chosen = np.full(tables, -1, np.int64)
    picked = np.flatnonzero(solved.x[tables:] > 0.5)
    chosen[child[picked]] = part[parent[picked]]
    return chosen, scale * float(solved.mip_dual_bound), solved.status == 0


def greedy(
    keep: NDArray[np.float64],
    parents: Sequence[dict[int, float]],
    locked: NDArray[np.bool_],
    part: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Choose by dropping the table that saves most, then by single changes while they save.

    Args:
        keep: cost of keeping each table, [tables].
        parents: cost of rebuilding each table by its parents.
        locked: tables that must be kept, [tables].
        part: tables of a component.

    Returns:
        Parents of the tables of the component, [part]; -1 for those that are kept.
    """
    search = _LocalSearch(keep, parents, locked, part)
    search.drop_all()
    while search.improve():
        pass
    return np.array([search.served_by(int(table)) for table in part], np.int64)


class _LocalSearch:
    """Kept tables of a component, and what changing one of them saves."""

    def __init__(
        self,
        keep: NDArray[np.float64],
        parents: Sequence[dict[int, float]],
        locked: NDArray[np.bool_],
        part: NDArray[np.int64],
    ) -> None:
        self.keep, self.parents, self.locked = keep, parents, locked
        self.part = [int(table) for table in part]
        self.kept = set(self.part)
        self.children: dict[int, list[int]] = {table: [] for table in self.part}
        for table in self.part:
            for parent in parents[table]:
                self.children[parent].append(table)

    def served_by(self, table: int, *, without: int = -1, added: int = -1) -> int:
        """Return the cheapest kept parent, -1 for a kept table, -2 where there is none."""
        if (table in self.kept and table != without) or table == added:
            return -1
        costs = [
            (cost, parent)
            for parent, cost in self.parents[table].items()
            if parent == added or (parent in self.kept and parent != without)
        ]
        return min(costs)[1] if costs else -2

    def _cost_of(self, table: int, *, without: int = -1, added: int = -1) -> float:
        parent = self.served_by(table, without=without, added=added)
        if parent == -1:
            return float(self.keep[table])
        return np.inf if parent == -2 else self.parents[table][parent]

    def saving(self, *, without: int = -1, added: int = -1) -> float:
        """Return what dropping one table and adding another saves; minus infinity if impossible."""
        touched = {table for table in (without, added) if table >= 0}
        for table in tuple(touched):
            touched.update(self.children[table])
        if without >= 0 and self.locked[without]:
            return -np.inf
        now = sum(self._cost_of(table) for table in touched)
        return now - sum(self._cost_of(table, without=without, added=added) for table in touched)

    def drop_all(self) -> None:
        """Drop the table that saves most, again and again; old savings are computed anew."""
        waiting = [(-self.saving(without=table), table) for table in self.part]
        heapq.heapify(waiting)
        while waiting and waiting[0][0] < 0:
            _, table = heapq.heappop(waiting)
            now = self.saving(without=table)
            if waiting and -now > waiting[0][0]:
                heapq.heappush(waiting, (-now, table))
            elif now > 0:
                self.kept.discard(table)

    def improve(self) -> bool:
        """Make every single drop, addition and exchange that saves; whether there was one."""
        has_saved = False
        for table in self.part:
            if table in self.kept:
                moves = [(table, -1), *((table, other) for other in self._near(table))]
            else:
                moves = [(-1, table)]
            for without, added in moves:
                least = 1e-9 * self.keep[table]
                if self.saving(without=without, added=added) > least:
                    self.kept.discard(without)
                    self.kept |= {added} - {-1}
                    has_saved = True
                    break
        return has_saved

    def _near(self, table: int) -> list[int]:
        """Return deleted tables that could stand in for a kept one."""
        near = {*self.parents[table], *self.children[table]}
        return sorted(other for other in near if other not in self.kept)
