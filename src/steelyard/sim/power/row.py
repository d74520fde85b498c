"""A row of servers behind one power budget."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.power import EnergyModel, prompt_features, token_features
from steelyard.errors import ConfigError, require
from steelyard.sim.power.requests import HIGH, LOW, RowRequests
from steelyard.sim.power.state import RowTables

__all__ = ["ServerRow"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerRow:
    """Servers of one kind, each with one copy of a model, on one budget.

    Attributes:
        model: a copy on the accelerators of one server.
        high_servers: servers for requests of high priority.
        low_servers: servers for the others; priorities share no server.
        budget_w: power that the row may draw.
        slots: requests that a server works on at once.
        host_w: power of a server beside its accelerators, nearly flat.
        brake_clock: clock under the power brake over the highest; 288 of 1,410 MHz on an A100.
        counts_peaks: whether prompts count at the peak that they reach, as a breaker feels it, or
            at their mean, as a meter of energy does.
        context_tokens: tokens that a request attends on average, which says how much slower tokens
            of several requests are than those of one.
    """

    model: EnergyModel
    high_servers: int
    low_servers: int
    budget_w: float
    slots: int = 1
    host_w: float = 0.0
    brake_clock: float = 288 / 1410
    counts_peaks: bool = True
    context_tokens: float = 3600.0

    def __post_init__(self) -> None:
        """Refuse rows that cannot be."""
        require(
            self,
            high_servers=(self.high_servers >= 0, "0 or more"),
            low_servers=(self.low_servers >= 0, "0 or more"),
            budget_w=(0 < self.budget_w < math.inf, "finite watts above 0"),
            slots=(self.slots >= 1, "1 or more"),
            host_w=(self.host_w >= 0, "0 or more"),
            brake_clock=(0 < self.brake_clock <= 1, "in (0, 1]"),
        )
        if not self.servers:
            raise ConfigError("a row without servers", hint="give one or more")

    @classmethod
    def provisioned(
        cls,
        model: EnergyModel,
        servers: int,
        *,
        high_share: float,
        added: int = 0,
        accelerator_share: float = 0.60,
        host_share: float = 0.356,
        slots: int = 1,
    ) -> "ServerRow":
        """Return a row whose budget was planned for a number of servers.

        By default a server in training, its accelerators at their peak, draws the 97 % of its part
        of the budget that are published.

        Args:
            model: a copy on the accelerators of one server.
            servers: servers that the budget was planned for.
            high_share: share of the servers for requests of high priority.
            added: servers more than that.
            accelerator_share: rated power of a server's accelerators over its part of the budget.
            host_share: power beside them over that part.
            slots: requests that a server works on at once.

        Returns:
            The row, with one server or more for each priority that has a share.

        Raises:
            ConfigError: no servers, or a share outside [0, 1].

        Source: arXiv 2308.12908: accelerators have half or more of a server's provisioned power.
        """
        if servers < 1 or added < 0 or not 0 <= high_share <= 1:
            raise ConfigError(
                f"{servers} servers and {added} added with {high_share:g} of them for high "
                "priority, but there must be one or more, 0 or more, and a share in [0, 1]"
            )
        total = servers + added
        high = round(total * high_share)
        if 0 < high_share < 1 and total > 1:
            high = min(max(high, 1), total - 1)
        part_w = model.tensor_parallel * model.curve.rated_w / accelerator_share
        return cls(
            model=model,
            high_servers=high,
            low_servers=total - high,
            budget_w=servers * part_w,
            slots=slots,
            host_w=host_share * part_w,
        )

    @property
    def servers(self) -> int:
        """All servers."""
        return self.high_servers + self.low_servers

    @property
    def training_w(self) -> float:
        """Power of the row if all accelerators are at their peak together, as in training."""
        curve = self.model.curve
        peak_w = curve.top * curve.rated_w * self.model.tensor_parallel
        return self.servers * (peak_w + self.host_w)

    def work_s(self, requests: RowRequests) -> tuple[Array, Array]:
        """Return the seconds of each request's prompt and of its tokens, alone at the full clock.

        Args:
            requests: the requests.

        Returns:
            Seconds, [requests] each; the first token comes with the prompt.
        """
        prompts = self.model.time_s(prompt_features(requests.prompt_tokens))
        context = requests.prompt_tokens + requests.output_tokens / 2
        tokens = self.model.time_s(token_features(context))
        return prompts, tokens * (requests.output_tokens - 1)

    def high_work_share(self, requests: RowRequests) -> float:
        """Return the share of all work that is of high priority, as servers should be divided."""
        prompts, tokens = self.work_s(requests)
        work = prompts + tokens
        return float(work[requests.priority == HIGH].sum() / work.sum())

    def slowdowns(self) -> Array:
        """Return the seconds of a token over those of a lone request, by requests, [slots + 1]."""
        counts = range(1, self.slots + 1)
        seconds = [self.model.token(self.context_tokens, count).time_s for count in counts]
        return np.array([1.0, *(value / seconds[0] for value in seconds)])

    def hungrier(self, factor: float) -> "ServerRow":
        """Return the same row with accelerators whose power is a factor of this one's."""
        curve = replace(self.model.curve, rated_w=self.model.curve.rated_w * factor)
        return replace(self, model=replace(self.model, curve=curve))

    def tables(self, requests: RowRequests) -> RowTables:
        """Return what the compiled loop reads."""
        model = self.model
        prompt_s, work_s = self.work_s(requests)
        held = prompt_features(requests.prompt_tokens)
        # Half the clock doubles what is clocked.
        clocked = model.time_s(held, 0.5) / prompt_s - 1
        peaks_w = model.prompt_peak_w(requests.prompt_tokens)
        counts = range(1, self.slots + 1)
        watts = [model.token(self.context_tokens, count).power_w for count in counts]
        idle_w = model.curve.idle_w * model.tensor_parallel
        order = np.argsort(requests.priority, kind="stable")
        bounds = np.searchsorted(requests.priority[order], [HIGH, LOW, LOW + 1])
        return RowTables(
            arrival_s=requests.arrival_s,
            prompt_s=prompt_s,
            prompt_clocked=clocked,
            prompt_w=peaks_w if self.counts_peaks else model.power_w(held),
            work_s=work_s,
            order=order.astype(np.int64),
            bounds=bounds.astype(np.int64),
            kind=requests.kind,
            priority=np.repeat([HIGH, LOW], [self.high_servers, self.low_servers]),
            slow=self.slowdowns(),
            token_w=np.array([idle_w, *watts]),
            host_w=self.host_w,
            cubic=model.curve.cubic,
            token_clocked=model.token_clocked,
            budget_w=self.budget_w,
        )
