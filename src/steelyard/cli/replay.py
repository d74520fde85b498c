"""`steelyard train replay`: the last steps before a divergence, with everything measured."""

from pathlib import Path
from typing import TYPE_CHECKING

from steelyard import config as configs
from steelyard import files
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.runs.report import Block, Cell, Column, Report, Section, Table, Text
from steelyard.train.config import TrainConfig

if TYPE_CHECKING:
    from steelyard.data.shards import TokenShards
    from steelyard.train.replay import Replay

__all__ = ["replay"]

_EXAMPLES = 5
_STEPS = 12
_WORDS = 70


def replay(run: Path, *, data: Path, step: int = 0, json: Switch = False) -> None:
    """Train the last 50 steps before a divergence again, and name the layer and the example.

    Example: steelyard train replay runs/tiny --data text

    The run's folder is only read.

    Args:
        run: folder of the run: one whose loss was no longer finite, or has a spike.
        data: folder of token shards that it trained on.
        step: number of the step to look at, as the message of the divergence counts; 0 finds it.
        json: print everything that was measured as JSON.
    """
    from steelyard.data.shards import TokenShards
    from steelyard.train.trainer import replay_run

    path = run / "config.json"
    if not path.exists():
        raise ConfigError(f"{run} is no folder of a run", hint="give what `train run --out` named")
    kept = files.read_json(path)
    config = configs.convert(kept["config"], TrainConfig, where=str(path))
    shards = TokenShards(data)
    found = replay_run(config, shards, run, step=step - 1 if step else None)
    print_report(
        _page(config, shards, found), json=json, values=configs.to_plain(found) | {"run": str(run)}
    )


def _page(config: TrainConfig, shards: "TokenShards", found: "Replay") -> Report:
    """Show what is to blame, the steps, and the examples."""
    same = "came again bit for bit" if found.is_identical else "did NOT come again bit for bit"
    first = found.steps[0].step + 1
    subtitle = (
        f"steps {first} to {found.steps[-1].step + 1}, from the checkpoint of step {found.began}; "
        f"the losses that were written down {same}"
    )
    what = {
        "loss spike": "its activations or gradients are more than four times their usual",
        "activation": "its output is not finite",
        "gradient": "its gradient is not finite",
        "weight": "its weights are not finite after the update",
    }[found.kind]
    blame = Text(f"Step {found.step + 1}, {found.kind}: the first layer is {found.layer}; {what}.")
    blocks: list[Block] = [blame, _examples(config, shards, found), _steps(found)]
    return Report(f"Replay of {config.architecture.name}", subtitle, [Section("", blocks)])


def _examples(config: TrainConfig, shards: "TokenShards", found: "Replay") -> Table:
    """List the worst examples of the step with their beginnings."""
    from steelyard.data.shards import load_tokenizer

    shape = (config.batch_size, config.sequence_length, config.seed)
    batch = shards.batch(found.step, *shape)
    tokenizer = load_tokenizer(shards.directory)
    rows: list[list[Cell]] = []
    for item in found.examples[:_EXAMPLES]:
        text = " ".join(tokenizer.decode(batch[item.row].tolist()).split())[:_WORDS]
        sizes = (f"{item.loss:.4g}", f"{item.gradient_norm:.4g}")
        number = str(found.step * config.batch_size + item.row)
        rows.append([str(item.row), number, *sizes, item.layer or "finite", text])
    heads = ("row of the batch", "example of the run", "loss", "gradient norm", "first not finite")
    columns = [Column(head, align="right") for head in heads] + [Column("begins", rank=1)]
    return Table(columns, rows)


def _steps(found: "Replay") -> Table:
    """List the last steps."""
    sizes = dict(found.update_sizes)
    probes = {
        trace.step: probe.update for trace, probe in zip(found.steps, found.stability, strict=False)
    }
    rows: list[list[Cell]] = [
        [
            str(trace.step + 1),
            f"{trace.loss:.4f}",
            f"{trace.gradient_norm:.4g}",
            f"{sizes.get(trace.step, float('nan')):.3g}",
            f"{probes.get(trace.step, float('nan')):.3g}",
            max(trace.activations, key=lambda name: trace.activations[name], default=""),
            f"{trace.fault.kind} of {trace.fault.layer}" if trace.fault else "",
        ]
        for trace in found.steps[-_STEPS:]
    ]
    heads = ("step", "loss", "gradient norm", "relative update", "probe: change of the output")
    columns = [Column(head, align="right") for head in heads]
    columns += [Column("largest activation", rank=1), Column("not finite")]
    return Table(columns, rows)
