"""What a service is planned for: model, machines, requests and limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard.catalog import accelerator, from_huggingface
from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.roofline import Machine
from steelyard.plan.machines import nodes_of
from steelyard.plan.service.arrangement import ServiceLimits
from steelyard.plan.service.expected import DRIFT
from steelyard.plan.service.load import ServiceLoad, asked_load
from steelyard.plan.service.options import EngineOption, engine_options, own_option
from steelyard.plan.service.search import ServiceSearch
from steelyard.plan.shapes import model_of
from steelyard.serve.client.summary import Slo
from steelyard.serve.deployment import DeployedLoad, DeployedMachine

__all__ = ["OwnEngine", "ServiceCase"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnEngine:
    """This package's own engine on a CPU, in place of a roofline.

    Attributes:
        step_time: its measured step times.
        memory_bytes: what its process may come to hold.
        process_bytes: what it holds without a model.
    """

    step_time: PhaseStepTime
    memory_bytes: float
    process_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceCase:
    """A service that is to be planned.

    Attributes:
        arch: model that is served.
        accelerator: machines.
        dtype: number format of weights and products.
        load: requests.
        rate_per_s: requests per second.
        slo: limits of the first and of further tokens.
        share: share of the requests that has to keep both.
        per_node: accelerators of a node.
        nodes: nodes over which one instance may spread.
        network_bytes_per_s: rate of a node to others; 0 keeps the phases of a request in a node.
        token_budget: most tokens of a step where prompts are divided.
        max_num_seqs: most sequences of a micro-batch.
        own: measured engine; None for step times of the roofline.
    """

    arch: Architecture
    accelerator: Accelerator
    dtype: str = "bf16"
    load: ServiceLoad
    rate_per_s: float
    slo: Slo
    share: float = 0.9
    per_node: int = 8
    nodes: int = 1
    network_bytes_per_s: float = 0.0
    token_budget: int = 512
    max_num_seqs: int = 256
    own: OwnEngine | None = None

    @classmethod
    def asked(
        cls,
        model: str,
        machine: DeployedMachine,
        load: DeployedLoad,
        *,
        token_budget: int = 512,
        max_num_seqs: int = 256,
        own: OwnEngine | None = None,
    ) -> "ServiceCase":
        """Look up what is named.

        Args:
            model: catalog name of the model or its size; its folder for a measured engine.
            machine: where it is to run.
            load: what is asked, and within which limits.
            token_budget: most tokens of a step where prompts are divided.
            max_num_seqs: most sequences of a micro-batch.
            own: measured engine; None for step times of the roofline.

        Returns:
            The case; the whole trace is drawn from.

        Raises:
            CatalogError: there is no such model or machine.
            TraceError: the trace cannot be read.
        """
        return cls(
            arch=from_huggingface(Path(model)) if own else model_of(model)[0],
            accelerator=accelerator(machine.accelerator),
            dtype=machine.dtype,
            load=asked_load(load),
            rate_per_s=load.rate_per_s,
            slo=Slo(ttft_s=load.ttft_s, tpot_s=load.tpot_s),
            share=load.attainment,
            per_node=machine.per_node,
            nodes=machine.nodes,
            network_bytes_per_s=machine.network_bytes_per_s,
            token_budget=token_budget,
            max_num_seqs=max_num_seqs,
            own=own,
        )

    @property
    def machine(self) -> Machine:
        """One of the accelerators, with its links."""
        return Machine.from_accelerator(
            self.accelerator, dtype=self.dtype, cluster=nodes_of(self.accelerator, self.per_node)
        )

    @property
    def drift(self) -> float:
        """How far a machine moves between the measurement of its steps and its service."""
        return 0.0 if self.own is None else DRIFT

    def limits(self) -> ServiceLimits:
        """Return how engines work and what joins them."""
        most = min(self.max_num_seqs, self.token_budget)
        base = ServiceLimits(
            per_node=self.per_node,
            nodes=self.nodes,
            token_budget=self.token_budget,
            prefill_budget=self.token_budget,
            max_num_seqs=most,
        )
        if self.own is not None:
            return base
        machine = self.machine
        size = kv_bytes_per_token(self.arch, machine.dtype_bytes)
        share = machine.efficiencies.link
        node_rate = share * (machine.scale_up_bytes_per_s or machine.host_link_bytes_per_s)
        outside = share * self.network_bytes_per_s
        return replace(
            base,
            node_transfer_s_per_token=size / node_rate if node_rate else 0.0,
            network_transfer_s_per_token=size / outside if outside else float("inf"),
        )

    def options(
        self, tensors: Sequence[int] = (1, 2, 4, 8), pipelines: Sequence[int] = (1, 2, 4)
    ) -> list[EngineOption]:
        """Return every split of the model.

        Args:
            tensors: accelerators that may share a layer; those beyond a node are left out.
            pipelines: stages to try; those beyond all nodes are left out.

        Returns:
            The options; one for an engine of this package.
        """
        if self.own is not None:
            return [
                own_option(
                    self.arch,
                    self.own.step_time,
                    memory_bytes=self.own.memory_bytes,
                    process_bytes=self.own.process_bytes,
                    max_num_seqs=min(self.max_num_seqs, self.token_budget),
                    step_tokens=self.token_budget,
                    dtype="fp32" if self.dtype == "fp32" else "bf16",
                )
            ]
        return engine_options(
            self.arch,
            self.machine,
            step_tokens=self.token_budget,
            tensors=[count for count in tensors if count <= self.per_node],
            pipelines=[count for count in pipelines if count <= self.per_node * self.nodes],
        )

    def search(self, progress: Callable[[str], None] = lambda _: None) -> ServiceSearch:
        """Return the search over all splits.

        Args:
            progress: told of each arrangement that is simulated.

        Returns:
            The search.
        """
        return ServiceSearch(
            load=self.load,
            slo=self.slo,
            share=self.share,
            options=tuple(self.options()),
            limits=self.limits(),
            progress=progress,
            drift=self.drift,
        )
