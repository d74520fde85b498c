"""The causes of a longer step, each with what the step would gain without it."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.plan.explain.case import Case
from steelyard.plan.explain.pauses import find_pauses

__all__ = ["LEAST_SHARE", "Finding", "causes_of"]

Array = NDArray[np.float64]

LEAST_SHARE = 0.03
"""Share of the step's time that a cause costs at least to be named."""
_SLOWER, _SIGMAS = 0.04, 5.0
"""How much slower than its peers a rank is at least to be named, also in robust deviations."""
_MOST_NAMED = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause that lengthens the step.

    Attributes:
        cause: "slow rank", "slow stage", "kernels", "memory traffic", "tensor traffic",
            "all-reduce", "data wait", "bubble", "pauses", or "step" where the log tells no more.
        cost_s: seconds by which the step would be shorter without it.
        ranks: ranks that it comes from; empty for all.
        factor: how many times as long as expected the term lasts; 0 where nothing was expected.
        words: what it is, without a full stop.
    """

    cause: str
    cost_s: float
    ranks: tuple[int, ...]
    factor: float
    words: str


def causes_of(case: Case) -> list[Finding]:
    """List what lengthens a job's steps.

    Args:
        case: its log beside what is expected.

    Returns:
        Causes that cost enough, the dearest first. Where the step is longer than its interval and
        no term departs from its own, the term that adds most.
    """
    found = _certain(case)
    if found or case.seen.step_s <= case.high_s:
        return found
    likely = _certain(case.without_doubt())[:1]
    doubt = "; its forecast alone may be off by as much, which an earlier log would settle"
    return [replace(item, words=item.words + doubt) for item in likely]


def _certain(case: Case) -> list[Finding]:
    """List the causes that depart beyond doubt, the dearest first."""
    terms = case.seen.terms
    found: list[Finding | None] = [_pauses(case)]
    if "compute_s" in terms:
        found += [_slow_ranks(case), *_kernels(case)]
    if "tensor_s" in terms:
        found.append(_tensor(case))
    if "data_s" in terms:
        found.append(_replicas(case))
    if "load_s" in terms:
        found.append(_load(case))
    if "bubble_s" in terms:
        found.append(_bubble(case))
    if not terms:
        found.append(_whole(case))
    least = LEAST_SHARE * case.seen.step_s
    kept = [item for item in found if item is not None and item.cost_s > least]
    return sorted(kept, key=lambda item: -item.cost_s)


def _pauses(case: Case) -> Finding:
    """Name steps of unusual length."""
    log = case.log
    found = find_pauses(log.steps, log.job_step_s)
    before = case.baseline
    usual_s = find_pauses(before.steps, before.job_step_s).lost_s if before else 0.0
    told = f"every {found.period} steps" if found.period else "irregularly"
    return Finding(
        cause="pauses",
        cost_s=found.lost_s - usual_s,
        ranks=(),
        factor=0.0,
        words=f"{found.count} of {len(log.steps)} steps pause, {told}: such as saving, evaluating, "
        "or collecting garbage",
    )


def _peers(values: Array) -> float:
    """Return what is usual: the lower median, so that of two the faster one is."""
    known = np.sort(values[np.isfinite(values)])
    return float(known[(len(known) - 1) // 2])


def _outliers(values: Array) -> NDArray[np.bool_]:
    """Find ratios that lie above those of their peers."""
    logs = np.log(np.maximum(values, 1e-9))
    far = logs - _peers(logs)
    spread = 1.4826 * float(np.nanmedian(np.abs(far)))
    # Where half of the ranks are slow, the peers are of two kinds and their spread says nothing.
    spread = spread if spread < _SLOWER else 0.0
    return far > max(np.log1p(_SLOWER), _SIGMAS * spread)


def _numbers(case: Case, mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the ranks of places [data, pipeline] or of members [data, pipeline, tensor]."""
    step = case.model.step
    whole = np.broadcast_to(
        mask if mask.ndim == 3 else mask[..., None], (*case.model.shape, step.tensor)
    )
    data, pipeline, tensor = np.nonzero(whole)
    return tuple(sorted((tensor + step.tensor * (data + step.data * pipeline)).tolist()))


def _named(ranks: tuple[int, ...]) -> str:
    """Return ranks in words."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = " ..." if len(ranks) > _MOST_NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"


def _slow_ranks(case: Case) -> Finding | None:
    """Name ranks whose kernels last longer than those of their peers."""
    if not len(case.log.ranks):
        return None
    ratio = case.seen.kernels_s / case.expected.kernels_s
    slow = np.isfinite(ratio) & _outliers(ratio)
    if not slow.any():
        return None
    usual = _peers(ratio)
    places = slow.any(axis=-1)
    even = np.where(places, usual, case.ratio("compute_s")) * case.expected_work.compute
    ranks, factor = _numbers(case, slow), float(np.nanmax(ratio) / usual)
    # Of one rank per stage nobody can say whether the rank or its share of layers is at fault.
    whole = np.isfinite(ratio).sum(axis=(0, 2)) > 1
    stages = (slow | ~np.isfinite(ratio)).all(axis=(0, 2)) & whole
    is_stage = stages.any() and not slow[:, ~stages].any()
    where = "stage " + ", ".join(map(str, np.flatnonzero(stages))) if is_stage else _named(ranks)
    return Finding(
        cause="slow stage" if is_stage else "slow rank",
        cost_s=case.predicted.time_s - case.time_s(compute=even),
        ranks=ranks,
        factor=factor,
        words=f"kernels of {where} last {factor:.2f} times as long as those of their peers, who "
        "wait",
    )


def _kernels(case: Case) -> list[Finding]:
    """Name products that are slower on all ranks, and what moves memory."""
    usual, update = _peers(case.ratio("compute_s")), _peers(case.ratio("update_s"))
    products, base = _products(case, usual, update), case.expected_work.compute
    rest = _rest(case, update)
    found: list[Finding] = []
    is_memory = max(update, rest) > case.tolerance("update_s")
    if is_memory:
        as_is = case.time_s(compute=usual * base)
        gain_s = as_is - case.time_s(
            compute=min(products, usual) * base, update=case.expected_work.update
        )
        factor = max(update, rest)
        words = (
            f"what moves memory lasts {factor:.2f} times as long as expected: update and kernels"
        )
        words += " that are no products"
        found.append(
            Finding(cause="memory traffic", cost_s=gain_s, ranks=(), factor=factor, words=words)
        )
    slower = products if is_memory else usual
    if slower > case.tolerance("compute_s"):
        evened = usual * base
        gain_s = case.time_s(compute=evened) - case.time_s(compute=evened / slower)
        words = f"kernels last {slower:.2f} times as long as expected on all ranks"
        found.append(Finding(cause="kernels", cost_s=gain_s, ranks=(), factor=slower, words=words))
    return found


def _rest(case: Case, update: float) -> float:
    """Return the factor of kernels that are no products; the update's where it is not known."""
    ours, theirs = case.seen.terms, case.expected.terms
    if "product_s" not in ours or "product_s" not in theirs:
        return update
    rest = [item["compute_s"] - item["product_s"] for item in (ours, theirs)]
    return _peers(rest[0] / np.maximum(rest[1], 1e-12))


def _products(case: Case, usual: float, update: float) -> float:
    """Return the kernels' factor without what slow memory explains of it."""
    ours, theirs = case.seen.terms, case.expected.terms
    if "product_s" in ours and "product_s" in theirs:
        share = float(np.median(theirs["product_s"] / theirs["compute_s"]))
        return 1.0 + share * (_peers(case.ratio("product_s")) - 1.0)
    share = case.product_share
    return max(usual - (1.0 - share) * max(update - 1.0, 0.0), min(usual, 1.0))


def _tensor(case: Case) -> Finding | None:
    """Name tensor-parallel traffic that is slower, in all groups or in some."""
    ratio = case.ratio("tensor_s")
    usual = _peers(ratio)
    base = case.expected_work.tensor
    if usual > case.tolerance("tensor_s"):
        cost_s = case.predicted.time_s - case.time_s(tensor=base)
        words = f"tensor-parallel traffic lasts {usual:.2f} times as long as expected"
        return Finding(cause="tensor traffic", cost_s=cost_s, ranks=(), factor=usual, words=words)
    slow = _outliers(ratio) if ratio.size > 1 else np.zeros(ratio.shape, dtype=bool)
    if not slow.any():
        return None
    ranks, factor = _numbers(case, slow), float(ratio.max() / usual)
    return Finding(
        cause="tensor traffic",
        cost_s=case.predicted.time_s - case.time_s(tensor=np.where(slow, usual, ratio) * base),
        ranks=ranks,
        factor=factor,
        words=f"tensor-parallel traffic of {_named(ranks)} lasts {factor:.2f} times as long as in "
        "other groups",
    )


def _replicas(case: Case) -> Finding | None:
    """Name collectives over the replicas that last longer than the last replica explains."""
    ours, theirs = case.seen.data_own_s, case.expected.data_own_s
    beyond = ours - theirs * case.tolerance("data_s")
    if not (beyond > 0).any():
        return None
    excess = ours - theirs
    stages = excess > 0.5 * excess.max()
    has_stages = len(case.log.ranks) > 0 and not stages.all()
    ranks = _numbers(case, np.broadcast_to(stages, case.model.shape)) if has_stages else ()
    before, now = float(theirs.max()), float(ours.max())
    factor = now / before if before > 0 else 0.0
    where = f" of stage {', '.join(map(str, np.flatnonzero(stages)))}" if has_stages else ""
    longer = f"{factor:.2f} times as long as expected" if factor else "longer than expected"
    return Finding(
        cause="all-reduce",
        cost_s=case.predicted.time_s - case.time_s(data_extra_s=case.expected_work.data_extra_s),
        ranks=ranks,
        factor=factor,
        words=f"gathers and all-reduces over the replicas{where} hold up {longer}",
    )


def _load(case: Case) -> Finding:
    """Name ranks that wait for their data."""
    waits = case.seen.terms["load_s"]
    slow = waits > 0.5 * max(float(waits.max()), 1e-12)
    has_ranks = len(case.log.ranks) > 0
    ranks = _numbers(case, slow) if has_ranks and not slow.all() else ()
    return Finding(
        cause="data wait",
        cost_s=case.seen.load_s - case.expected.load_s,
        ranks=ranks,
        factor=0.0,
        words=f"{_named(ranks) if ranks else 'all ranks'} wait for their data at each step",
    )


def _bubble(case: Case) -> Finding:
    """Name waits for other stages that do not follow from any rank's work."""
    usual = float(np.mean(case.expected.terms["bubble_s"]))
    cost_s = case.wait_beyond("bubble_s")
    factor = (usual + cost_s) / usual if usual > 0 else 0.0
    return Finding(
        cause="bubble",
        cost_s=cost_s,
        ranks=(),
        factor=factor,
        words="ranks wait longer for other stages than their work explains: transfers between "
        "stages, or another schedule or number of micro-batches than was said",
    )


def _whole(case: Case) -> Finding | None:
    """Say that the whole step departs, where nothing is known of its terms."""
    factor = case.seen.step_s / case.expected.step_s
    if case.seen.step_s <= case.high_s:
        return None
    return Finding(
        cause="step",
        cost_s=case.seen.step_s - case.expected.step_s,
        ranks=(),
        factor=factor,
        words=f"steps last {factor:.2f} times as long as expected, and the log has no terms to "
        "tell why",
    )
