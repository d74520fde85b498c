"""`steelyard plan experts`: one node that serves many models, of which few are in its memory."""

from dataclasses import dataclass

import cyclopts

from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.plan.experts import CompositionLoad, CompositionPlan, expert_node, plan_composition
from steelyard.plan.shapes import model_of
from steelyard.runs.report import Cell, Column, Report, Section, Table
from steelyard.serve.experts import ExpertOrder
from steelyard.sim.experts import zipf_popularity
from steelyard.units import parse, pretty

__all__ = ["ComposedLoad", "experts"]

_ROWS = (
    ("router per prompt", "router_s"),
    ("waiting for weights", "switch_s"),
    ("answering", "run_s"),
    ("waiting for its turn", "wait_s"),
    ("99 % wait for their turn at most", "wait_p99_s"),
)


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ComposedLoad:
    """Experts, and what is asked of them.

    Args:
        model: architecture of every expert and of the router: catalog name, or size, such as 7B.
        count: number of experts.
        popularity: how fast an expert's share of the prompts falls with its rank (Zipf); 0 for
            equal shares.
        prompt: tokens of a prompt.
        output: tokens of an answer.
        rate: prompts per second, such as '3 request/s'; one group after the other when left out.
        group: prompts that arrive together.
        prompts: prompts that are simulated.
    """

    model: str = "llama-2-7b"
    count: int = 150
    popularity: float = 1.0
    prompt: int = 256
    output: int = 20
    rate: str = ""
    group: int = 1
    prompts: int = 2000

    def load(self) -> CompositionLoad:
        """Return what is simulated."""
        if self.count < 1 or self.popularity < 0:
            raise ConfigError(
                f"--count {self.count} and --popularity {self.popularity:g}: need at least 1 and 0"
            )
        arch, _ = model_of(self.model)
        return CompositionLoad(
            arch=arch,
            shares=zipf_popularity(self.count, self.popularity),
            prompt=self.prompt,
            output=self.output,
            rate_per_s=parse(self.rate, "request/s", where="--rate") if self.rate else 0.0,
            group=self.group,
            num_prompts=self.prompts,
        )


def experts(
    *,
    asked: ComposedLoad | None = None,
    nodes: tuple[str, ...] = ("SN40L", "DGX-A100", "DGX-H100"),
    order: ExpertOrder = "grouped",
    max_batch: int = 8,
    max_wait: str = "60 s",
    resident: int = 0,
    prefetch: Switch = False,
    seed: int = 0,
    json: Switch = False,
) -> None:
    """Simulate a node whose router sends each prompt to one of many models.

    Example: steelyard plan experts --count 150 --popularity 0.8 --rate '3 request/s'

    Args:
        asked: experts, and what is asked of them.
        nodes: nodes to compare: SN40L, DGX-A100, DGX-H100.
        order: which expert runs next: fcfs, grouped or least-switch.
        max_batch: most prompts that an expert answers at once.
        max_wait: wait from which on the oldest prompt goes first under least-switch.
        resident: experts kept in the devices' memory, the router's place among them; as many as fit
            when 0.
        prefetch: bring the next expert while one runs.
        seed: seed of experts and arrivals.
        json: print the numbers as JSON.
    """
    if resident < 0 or 0 < resident < 3 or max_batch < 1:
        raise ConfigError(
            f"--resident {resident} and --max-batch {max_batch}: need 0 or at least 3, and 1"
        )
    chosen = asked or ComposedLoad()
    load = chosen.load()
    found = [
        plan_composition(
            load,
            expert_node(name),
            order=order,
            max_batch=max_batch,
            max_wait_s=parse(max_wait, "s", where="--max-wait"),
            max_resident=resident,
            prefetch=prefetch,
            seed=seed,
        )
        for name in nodes
    ]
    title = f"{chosen.count} experts of {load.arch.name}"
    said = f"{load.expert_bytes / 1e9:.2f} GB each, Zipf {chosen.popularity:g}, {order}; simulated"
    page = Report(title, said, [Section("A prompt", [_table(found)])])
    print_report(page, json=json, values=found)


def _table(found: list[CompositionPlan]) -> Table:
    """Tabulate the nodes side by side."""
    rows: list[list[Cell]] = [
        [words, *(pretty(getattr(item, name), "s") for item in found)] for words, name in _ROWS
    ]
    rows.append(["prompts per second", *(f"{item.rate_per_s:.2f}" for item in found)])
    rows.append(["experts in device memory", *(f"{item.resident}" for item in found)])
    rows.append(["experts brought", *(f"{item.switches:,}" for item in found)])
    rows.append(["nodes that hold all experts", *(f"{item.nodes}" for item in found)])
    return Table(
        columns=[Column(""), *(Column(item.node, align="right") for item in found)],
        rows=rows,
        caption="A DGX counts as holding what its devices hold, an SN40L what its host tier holds.",
    )
