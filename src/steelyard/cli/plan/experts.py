"""`steelyard plan experts`: one node that serves many models, of which few are in its memory."""

import numpy as np
from numpy.typing import NDArray

from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.plan.experts import CompositionLoad, CompositionPlan, expert_node, plan_composition
from steelyard.plan.shapes import model_of
from steelyard.runs.report import Cell, Column, Report, Section, Table
from steelyard.serve.experts import ExpertOrder
from steelyard.sim.experts import zipf_popularity
from steelyard.units import parse, pretty

__all__ = ["experts"]

_ROWS = (
    ("router per prompt", "router_s"),
    ("waiting for weights", "switch_s"),
    ("answering", "run_s"),
    ("waiting for its turn", "wait_s"),
    ("99 % wait for their turn at most", "wait_p99_s"),
)


def experts(
    *,
    model: str = "llama-2-7b",
    count: int = 150,
    nodes: tuple[str, ...] = ("SN40L", "DGX-A100", "DGX-H100"),
    popularity: float = 1.0,
    prompt: int = 256,
    output: int = 20,
    rate: str = "",
    group: int = 1,
    order: ExpertOrder = "grouped",
    max_batch: int = 8,
    max_wait: str = "60 s",
    resident: int = 0,
    prefetch: Switch = False,
    prompts: int = 2000,
    seed: int = 0,
    json: Switch = False,
) -> None:
    """Simulate a node whose router sends each prompt to one of many models.

    Example: steelyard plan experts --count 150 --popularity 0.8 --rate '3 request/s'

    Args:
        model: architecture of every expert and of the router: catalog name, or size, such as 7B.
        count: number of experts.
        nodes: nodes to compare: SN40L, DGX-A100, DGX-H100.
        popularity: how fast an expert's share of the prompts falls with its rank (Zipf); 0 for
            equal shares.
        prompt: tokens of a prompt.
        output: tokens of an answer.
        rate: prompts per second, such as '3 request/s'; one group after the other when left out.
        group: prompts that arrive together.
        order: which expert runs next: fcfs, grouped or least-switch.
        max_batch: most prompts that an expert answers at once.
        max_wait: wait from which on the oldest prompt goes first under least-switch.
        resident: experts kept in the devices' memory, the router's place among them; as many as fit
            when 0.
        prefetch: bring the next expert while one runs.
        prompts: prompts that are simulated.
        seed: seed of experts and arrivals.
        json: print the numbers as JSON.
    """
    if count < 1 or popularity < 0 or (resident and resident < 3):
        raise ConfigError(
            f"--count {count}, --popularity {popularity:g}, --resident {resident}: need at least "
            f"1, at least 0, and 0 or at least 3"
        )
    arch, _ = model_of(model)
    shares: NDArray[np.float64] = zipf_popularity(count, popularity)
    load = CompositionLoad(
        arch=arch,
        shares=shares,
        prompt=prompt,
        output=output,
        rate_per_s=parse(rate, "request/s", where="--rate") if rate else 0.0,
        group=group,
        num_prompts=prompts,
    )
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
    title = f"{count} experts of {arch.name}"
    said = f"{load.expert_bytes / 1e9:.2f} GB each, Zipf {popularity:g}, {order}; simulated"
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
