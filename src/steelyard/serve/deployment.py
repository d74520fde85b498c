"""A deployment: the replicas that serve a model, their limits, and what is forecast of them."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from steelyard.errors import CapacityError, ConfigError, require
from steelyard.quantity import Forecast
from steelyard.serve.options import EngineOptions
from steelyard.serve.traces import TraceRow, load_rows, synthetic_rows
from steelyard.serve.traces.reshape import scale_lengths

__all__ = ["DeployedGroup", "DeployedLoad", "DeployedMachine", "Deployment"]

ENGINE_BLOCK = 16
"""Token slots of a block of this package's engine."""
_TAKEN = {
    "pool_bytes": "--pool",
    "num_blocks": "--num-blocks",
    "max_model_len": "--max-model-len",
    "token_budget": "--token-budget",
    "max_num_seqs": "--max-num-seqs",
    "whole_prompts": "--whole-prompts",
}
"""Options of an engine that a deployment sets, with their flags."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeployedGroup:
    """Equal replicas.

    Attributes:
        role: whether they run prompts, decode, or do both.
        replicas: how many in each instance.
        tensor: accelerators that share each layer.
        pipeline: stages of layers.
        num_blocks: blocks of keys and values in the pool of each micro-batch.
        block_size: token slots per block.
        token_budget: most tokens of a step.
        max_num_seqs: most sequences of a micro-batch.
        whole_prompts: whether prompts run undivided in steps of their own.
    """

    role: Literal["both", "prefill", "decode"] = "both"
    replicas: int = 1
    tensor: int = 1
    pipeline: int = 1
    num_blocks: int
    block_size: int = 16
    token_budget: int = 512
    max_num_seqs: int = 64
    whole_prompts: bool = False

    def __post_init__(self) -> None:
        """Refuse counts below 1."""
        names = ("replicas", "tensor", "pipeline", "num_blocks", "block_size", "max_num_seqs")
        require(
            self,
            token_budget=(
                self.token_budget >= self.max_num_seqs,
                f"at least max_num_seqs = {self.max_num_seqs}",
            ),
            **{name: (getattr(self, name) >= 1, "at least 1") for name in names},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DeployedLoad:
    """What is asked of all instances, and within which limits.

    Attributes:
        rate_per_s: requests per second.
        trace: requests with arrivals and lengths; lengths are drawn when left out.
        length_scale: factor on all lengths.
        requests: requests that a replay sends.
        prompt_tokens: mean prompt, before the scale.
        output_tokens: mean output, before the scale.
        seed: seed of what is drawn.
        ttft_s: longest time to the first token.
        tpot_s: longest mean time per further token.
        attainment: share of the requests that is to keep both.
        alone_ttft_s: time to the first token that this share keeps without load; 0 for unknown.
        alone_tpot_s: time per further token that it keeps without load; 0 for unknown.
    """

    rate_per_s: float
    trace: Path | None = None
    length_scale: float = 1.0
    requests: int = 100
    prompt_tokens: float = 512.0
    output_tokens: float = 256.0
    seed: int = 0
    ttft_s: float
    tpot_s: float
    attainment: float = 0.9
    alone_ttft_s: float = 0.0
    alone_tpot_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        names = ("rate_per_s", "length_scale", "ttft_s", "tpot_s")
        require(
            self,
            requests=(self.requests >= 1, "at least 1"),
            attainment=(0 < self.attainment < 1, "between 0 and 1"),
            alone_ttft_s=(self.alone_ttft_s >= 0, "at least 0"),
            alone_tpot_s=(self.alone_tpot_s >= 0, "at least 0"),
            **{name: (0 < getattr(self, name) < math.inf, "above 0") for name in names},
        )

    def rows(self) -> list[TraceRow]:
        """Return the requests of a replay at the rate, the same at every call.

        Returns:
            Rows by arrival: the trace's first ones, or drawn ones.

        Raises:
            TraceError: the trace cannot be read.
        """
        generator = np.random.default_rng(self.seed)
        if self.trace is not None:
            return load_rows(
                self.trace,
                generator,
                limit=self.requests,
                scale=self.length_scale,
                rate_per_s=self.rate_per_s,
            )
        drawn = synthetic_rows(
            generator,
            num_requests=self.requests,
            rate_per_s=self.rate_per_s,
            mean_prompt=self.prompt_tokens,
            mean_output=self.output_tokens,
            max_prompt=math.ceil(8 * self.prompt_tokens),
            max_output=math.ceil(8 * self.output_tokens),
        )
        return list(scale_lengths(drawn, self.length_scale))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeployedMachine:
    """Where the instances run.

    Attributes:
        accelerator: catalog name.
        dtype: number format of weights and products.
        per_node: accelerators of a node.
        nodes: nodes over which one instance may spread.
        network_bytes_per_s: rate of a node to others; 0 keeps the phases of a request in a node.
    """

    accelerator: str
    dtype: str = "bf16"
    per_node: int = 1
    nodes: int = 1
    network_bytes_per_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """What `steelyard plan serve` recommends and `steelyard serve` starts.

    Attributes:
        model: name of the model.
        machine: where it runs.
        instances: how often the groups are repeated.
        groups: one that does both, or one that runs prompts and one that decodes.
        max_model_len: longest prompt and output together.
        route: how a replica is chosen: the one with the fewest requests, or in turn.
        load: what is asked, and within which limits.
        forecasts: what is forecast of all instances under that load.
        reduced: what was made smaller to run here, in words; empty for a plan as it was made.
    """

    model: str
    machine: DeployedMachine
    instances: int = 1
    groups: tuple[DeployedGroup, ...]
    max_model_len: int
    route: Literal["fewest", "rotation"] = "fewest"
    load: DeployedLoad
    forecasts: tuple[Forecast, ...] = ()
    reduced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse groups that do not go together, or that hold no longest request."""
        roles = tuple(group.role for group in self.groups)
        require(
            self,
            instances=(self.instances >= 1, "at least 1"),
            groups=(roles in (("both",), ("prefill", "decode")), "both, or prefill and decode"),
            max_model_len=(self.max_model_len >= 2, "at least 2"),
        )
        for group in self.groups:
            room = group.num_blocks * group.block_size
            if room < self.max_model_len:
                raise CapacityError(
                    f"{group.num_blocks} blocks of {group.block_size} tokens do not hold a request "
                    f"of max_model_len {self.max_model_len}",
                    hint=f"set num_blocks >= {-(-self.max_model_len // group.block_size)}",
                )

    @property
    def num_replicas(self) -> int:
        """Replicas of all instances."""
        return self.instances * sum(group.replicas for group in self.groups)

    @property
    def num_accelerators(self) -> int:
        """Accelerators of all instances."""
        return self.instances * sum(
            group.replicas * group.tensor * group.pipeline for group in self.groups
        )

    def rows(self) -> list[TraceRow]:
        """Return the requests of a replay, without those that a server of it refuses.

        Returns:
            Rows by arrival, none longer than `max_model_len`.

        Raises:
            TraceError: the trace cannot be read.
        """
        most = self.max_model_len
        return [row for row in self.load.rows() if row.input_tokens + row.output_tokens <= most]

    def beyond_one_engine(self, model: str) -> list[str]:
        """Say what one engine of this package on one machine does not run of it.

        Args:
            model: name of the model that is to be served.

        Returns:
            A phrase for each thing; empty where it runs as it is.
        """
        group = self.groups[0]
        found = []
        if model != self.model:
            found.append(f"the model {self.model} ({model} is given)")
        if len(self.groups) > 1:
            found.append("prompts and decoding on replicas of their own")
        if self.num_replicas > 1:
            found.append(f"{self.num_replicas} replicas")
        for name, size in (("tensor", group.tensor), ("pipeline", group.pipeline)):
            if size > 1:
                found.append(f"{name} parallel over {size} accelerators")
        return found

    def engine_options(self, model: str, given: EngineOptions) -> EngineOptions:
        """Return the options of the engine that runs the only replica.

        Args:
            model: name of the model that is served.
            given: options that say the rest, such as threads.

        Returns:
            Options whose pool has the deployment's blocks; tokens are only guessed where that is
            asked for.

        Raises:
            ConfigError: one engine cannot run it, or an option says what the deployment says.
        """
        if beyond := self.beyond_one_engine(model):
            raise ConfigError(
                f"one engine here does not run {'; '.join(beyond)}",
                hint="add --reduced FILE for one replica of this model at reduced size",
            )
        plain = EngineOptions()
        if twice := [name for name in _TAKEN if getattr(given, name) != getattr(plain, name)]:
            raise ConfigError(
                f"{', '.join(map(_TAKEN.__getitem__, twice))} and --deployment both say the same",
                hint="change the deployment's file",
            )
        (group,) = self.groups
        return replace(
            given,
            num_blocks=group.num_blocks * group.block_size // ENGINE_BLOCK,
            max_model_len=self.max_model_len,
            token_budget=group.token_budget,
            max_num_seqs=group.max_num_seqs,
            whole_prompts=group.whole_prompts,
            # A plan counts neither what guessed tokens save nor the memory of what guesses them.
            speculate="off" if given.speculate == "auto" else given.speculate,
        )
