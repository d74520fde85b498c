"""What a running service would gain by each single change, the best first."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from steelyard.errors import CapacityError, CatalogError, ConfigError
from steelyard.plan.service.arrangement import Arranger
from steelyard.plan.service.case import ServiceCase
from steelyard.plan.service.deployed import deployed_instance
from steelyard.plan.service.goodput import Goodput, goodput
from steelyard.serve.deployment import DeployedGroup, Deployment

__all__ = ["ServiceChange", "carried_by", "changed", "single_changes"]

_MOST_TENSOR = 8
_MOST_PIPELINE = 4
_NARROW = "fp8"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceChange:
    """One change of a deployment.

    Attributes:
        name: what is set, such as "tensor=4"; empty for the deployment as it runs.
        deployment: the deployment then.
        goodput: what one of its instances carries; None where it cannot run.
        reason: why it cannot, else empty.
    """

    name: str
    deployment: Deployment
    goodput: Goodput | None = None
    reason: str = ""

    @property
    def total_per_s(self) -> float:
        """Requests per second that all instances carry."""
        return self.goodput.rate_per_s * self.deployment.instances if self.goodput else 0.0

    @property
    def per_device(self) -> float:
        """Requests per second and accelerator."""
        return self.total_per_s / self.deployment.num_accelerators


def single_changes(
    case: ServiceCase, running: Deployment, progress: Callable[[str], None] = lambda _: None
) -> list[ServiceChange]:
    """Simulate a deployment as it runs, and with each single change.

    Args:
        case: model, machines, requests and limits of the deployment.
        running: the deployment.
        progress: told of each change.

    Returns:
        The deployment itself, then the changes, that with the most goodput per accelerator first;
        those that cannot run last.

    Raises:
        CapacityError: the deployment itself does not fit in its machines' memory.
    """
    base = ServiceChange(name="", deployment=running, goodput=carried_by(case, running))
    found = []
    for name in _names(case, running):
        progress(name)
        item = _tried(case, running, name)
        # A change to what is there already is none.
        if item.reason or not _is_same(item.deployment, running):
            found.append(item)
    return [base, *sorted(found, key=lambda item: (item.goodput is None, -item.per_device))]


def _is_same(made: Deployment, running: Deployment) -> bool:
    """Return whether nothing but forecasts differ."""
    return replace(made, forecasts=()) == replace(running, forecasts=())


def _tried(case: ServiceCase, running: Deployment, name: str) -> ServiceChange:
    """Simulate one change, or say why it cannot run."""
    made = running
    try:
        made = changed(case, running, name)
        return ServiceChange(name=name, deployment=made, goodput=carried_by(case, made))
    except (CapacityError, CatalogError, ConfigError) as error:
        return ServiceChange(name=name, deployment=made, reason=str(error))


def carried_by(case: ServiceCase, deployment: Deployment) -> Goodput:
    """Return what one instance of a deployment carries.

    Args:
        case: model, machines, requests and limits.
        deployment: the deployment.

    Returns:
        Its goodput.

    Raises:
        CapacityError: its memory or its blocks do not hold the longest request.
        CatalogError: the machine has no peak for the number format.
    """
    case = _of(case, deployment)
    times = []
    for group in deployment.groups:
        (option,) = case.options([group.tensor], [group.pipeline]) or (None,)
        if option is None or option.reason:
            why = option.reason if option else "does not divide the model's heads or layers"
            raise CapacityError(f"TP {group.tensor}, PP {group.pipeline} {why}")
        held = Arranger(case.limits(), case.load.longest).room(
            option, group.role, whole=group.whole_prompts and group.role == "both"
        )
        if group.num_blocks * group.block_size > held:
            raise CapacityError(
                f"{group.num_blocks} blocks of a {group.role} replica do not fit: its memory "
                f"leaves {held // group.block_size}",
                hint="set num_blocks lower",
            )
        times.append(option.step_time)
    transfer_s = case.limits().node_transfer_s_per_token
    instance = deployed_instance(deployment, times, transfer_s)
    return goodput(instance.groups, case.load, case.slo, case.share)


def _of(case: ServiceCase, deployment: Deployment) -> ServiceCase:
    """Return the case with the limits of a deployment's engines."""
    group = deployment.groups[-1]
    return replace(
        case,
        dtype=deployment.machine.dtype if case.own is None else case.dtype,
        token_budget=group.token_budget,
        max_num_seqs=group.max_num_seqs,
    )


def _names(case: ServiceCase, running: Deployment) -> list[str]:
    """List the changes that are worth a look."""
    group = running.groups[-1]
    names = [f"instances={running.instances + 1}"]
    if running.instances > 1:
        names.append(f"instances={running.instances - 1}")
    for name, most in (("tensor", _MOST_TENSOR), ("pipeline", _MOST_PIPELINE)):
        size = getattr(group, name)
        found = [value for value in (size // 2, 2 * size) if 1 <= value <= most]
        names += [f"{name}={value}" for value in found if case.own is None]
    if case.own is None:
        names.append("roles=together" if len(running.groups) > 1 else "roles=apart")
        names.append(f"dtype={'bf16' if running.machine.dtype == _NARROW else _NARROW}")
    if len(running.groups) == 1:
        names.append(f"prompts={'chunked' if group.whole_prompts else 'whole'}")
    names += [f"token_budget={value}" for value in _near(group.token_budget)]
    names += [f"max_num_seqs={value}" for value in _near(group.max_num_seqs)]
    return [*names, "num_blocks=all"]


def _near(value: int) -> list[int]:
    """Return half and twice a number."""
    return [item for item in (value // 2, 2 * value) if item >= 1]


def changed(case: ServiceCase, running: Deployment, change: str) -> Deployment:
    """Return a deployment with one thing changed, and the blocks that its memory then leaves.

    Args:
        case: model, machines, requests and limits of the deployment.
        running: the deployment.
        change: such as "tensor=4", "pipeline=2", "instances=3", "roles=apart" or "together",
            "prompts=whole" or "chunked", "token_budget=1024", "max_num_seqs=128", "num_blocks=all"
            or a number, "dtype=fp8".

    Returns:
        The deployment, without forecasts.

    Raises:
        ConfigError: there is no such change, or its value is out of range.
        CatalogError: the machine has no peak for the number format.
        CapacityError: the memory does not hold the longest request then.
    """
    name, _, value = change.partition("=")
    plain = replace(running, forecasts=())
    match name:
        case "instances":
            return replace(plain, instances=_count(change, value))
        case "dtype":
            made = replace(plain, machine=replace(plain.machine, dtype=value))
            return _filled(case, made)
        case "roles" if value in ("apart", "together"):
            return _filled(case, _with_roles(plain, is_apart=value == "apart"))
        case "prompts" if value in ("whole", "chunked"):
            return _filled(case, _with_prompts(case, plain, is_whole=value == "whole"))
        case "num_blocks" if value == "all":
            return _filled(case, plain)
        case "num_blocks":
            return _each(plain, num_blocks=_count(change, value))
        case "tensor" | "pipeline":
            return _filled(case, _each(plain, **{name: _count(change, value)}))
        case "token_budget":
            least = max(group.max_num_seqs for group in plain.groups)
            return _filled(case, _each(plain, token_budget=max(_count(change, value), least)))
        case "max_num_seqs":
            count = _count(change, value)
            budget = max(*(group.token_budget for group in plain.groups), count)
            return _filled(case, _each(plain, max_num_seqs=count, token_budget=budget))
    raise ConfigError(
        f"there is no change {change!r}",
        hint="such as tensor=4, pipeline=2, instances=3, roles=apart, prompts=whole, "
        "token_budget=1024, max_num_seqs=128, num_blocks=all or dtype=fp8",
    )


def _count(change: str, value: str) -> int:
    """Read a number above 0."""
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{change!r} needs a whole number above 0", hint="such as tensor=4")
    return int(value)


def _each(running: Deployment, **given: int) -> Deployment:
    """Change the same fields of all groups."""
    return replace(running, groups=tuple(replace(group, **given) for group in running.groups))


def _with_roles(running: Deployment, *, is_apart: bool) -> Deployment:
    """Take phases apart, or put them together."""
    group = running.groups[-1]
    if not is_apart:
        return replace(running, groups=(replace(group, role="both", replicas=1),))
    halves = (
        replace(group, role="prefill", replicas=1, whole_prompts=True),
        replace(group, role="decode", replicas=1, whole_prompts=False),
    )
    return replace(running, groups=halves)


def _with_prompts(case: ServiceCase, running: Deployment, *, is_whole: bool) -> Deployment:
    """Divide prompts, or do not."""
    (group,) = running.groups
    arranger = Arranger(case.limits(), case.load.longest)
    budget = arranger.budget("both", whole=is_whole)
    made = replace(group, whole_prompts=is_whole, token_budget=max(budget, group.max_num_seqs))
    return replace(running, groups=(made,))


def _filled(case: ServiceCase, deployment: Deployment) -> Deployment:
    """Give every group the blocks that its memory leaves."""
    case = _of(case, deployment)
    arranger = Arranger(case.limits(), case.load.longest)

    def filled(group: DeployedGroup) -> DeployedGroup:
        found = case.options([group.tensor], [group.pipeline])
        whole = group.whole_prompts and group.role == "both"
        room = arranger.room(found[0], group.role, whole=whole) if found else 0
        if room < case.load.longest:
            why = found[0].reason if found else "does not divide the model's heads or layers"
            raise CapacityError(
                f"TP {group.tensor}, PP {group.pipeline} "
                f"{why or f'holds {room:,} of the {case.load.longest:,} tokens of a request'}"
            )
        return replace(group, num_blocks=room // group.block_size)

    return replace(deployment, groups=tuple(map(filled, deployment.groups)))
