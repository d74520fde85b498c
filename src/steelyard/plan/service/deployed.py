"""A plan as a deployment, and a deployment as what the simulator runs."""

from collections.abc import Sequence
from dataclasses import replace

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.errors import ConfigError
from steelyard.plan.service.arrangement import FleetInstance
from steelyard.plan.service.options import EngineOption
from steelyard.quantity import Forecast
from steelyard.serve.deployment import DeployedGroup, DeployedLoad, DeployedMachine, Deployment
from steelyard.sim.fleet.instance import ReplicaGroup

__all__ = ["deployed_instance", "deployment_of", "service_forecasts"]


def deployment_of(
    arrangement: FleetInstance,
    *,
    model: str,
    machine: DeployedMachine,
    instances: int,
    max_model_len: int,
    load: DeployedLoad,
    forecasts: Sequence[Forecast] = (),
) -> Deployment:
    """Return the deployment of an arrangement.

    Args:
        arrangement: what is repeated.
        model: name of the model.
        machine: where it runs.
        instances: how often it is repeated.
        max_model_len: longest prompt and output together.
        load: what is asked of all instances.
        forecasts: what is forecast of them.

    Returns:
        The deployment.
    """
    groups = tuple(
        DeployedGroup(
            role=group.role,
            replicas=group.count,
            tensor=option.tensor,
            pipeline=option.pipeline,
            num_blocks=group.blocks,
            block_size=group.block_size,
            token_budget=group.token_budget,
            max_num_seqs=group.max_num_seqs,
            whole_prompts=group.whole_prompts,
        )
        for option, group in zip(arrangement.options, arrangement.groups, strict=True)
    )
    return Deployment(
        model=model,
        machine=machine,
        instances=instances,
        groups=groups,
        max_model_len=max_model_len,
        load=load,
        forecasts=tuple(forecasts),
    )


def deployed_instance(
    deployment: Deployment, times: Sequence[PhaseStepTime], transfer_s_per_token: float = 0.0
) -> FleetInstance:
    """Return one instance of a deployment as the simulator runs it, with the blocks that it has.

    Args:
        deployment: the deployment.
        times: step times of each group.
        transfer_s_per_token: seconds in which a token's keys and values pass between phases.

    Returns:
        The instance; it is of kind "deployed".

    Raises:
        ConfigError: there are not as many step times as groups.
    """
    if len(times) != len(deployment.groups):
        raise ConfigError(
            f"{len(times)} step times for {len(deployment.groups)} groups", hint="give one for each"
        )
    options, groups = [], []
    for given, step_time in zip(deployment.groups, times, strict=True):
        lanes = 1 if given.role == "prefill" else given.pipeline
        tokens = given.num_blocks * given.block_size * lanes
        options.append(
            EngineOption(
                tensor=given.tensor, pipeline=given.pipeline, step_time=step_time, kv_tokens=tokens
            )
        )
        groups.append(_group(given, step_time, deployment.route))
    if len(groups) > 1:
        groups[1] = replace(groups[1], transfer_s_per_token=transfer_s_per_token)
    return FleetInstance(kind="deployed", options=tuple(options), groups=tuple(groups))


def _group(given: DeployedGroup, step_time: PhaseStepTime, route: str) -> ReplicaGroup:
    """Return a group as the simulator takes it."""
    return ReplicaGroup(
        step_time=step_time,
        blocks=given.num_blocks,
        role=given.role,
        count=given.replicas,
        stages=given.pipeline,
        block_size=given.block_size,
        token_budget=given.token_budget,
        max_num_seqs=given.max_num_seqs,
        whole_prompts=given.whole_prompts or given.role == "prefill",
        route="rotation" if route == "rotation" else "fewest",
    )


def service_forecasts(each: Sequence[Forecast], instances: int) -> list[Forecast]:
    """Return what is forecast of all instances, from what is forecast of each.

    Args:
        each: forecasts of one instance at its share of the rate.
        instances: how many there are.

    Returns:
        The same; rates are summed.
    """
    return [
        replace(
            item,
            value=item.value * instances,
            low=item.low * instances,
            high=item.high * instances,
        )
        if item.unit.endswith("/s")
        else item
        for item in each
    ]
