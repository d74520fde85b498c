"""Quantize a model into a folder: everything from its checks to the finished folder."""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from steelyard.files import exclusive, replace_folder, write_json
from steelyard.nn import checkpoint
from steelyard.nn.quantizing.folder import write_quantized
from steelyard.nn.quantizing.layer import Method
from steelyard.nn.quantizing.stack import (
    Losses,
    StackRecipe,
    layer_file,
    quantize_stack,
    uniform,
)
from steelyard.nn.transformer import Transformer
from steelyard.parallel import torch_threads
from steelyard.quantity import Check, Measurement
from steelyard.serve.quantize.mixture import Mixture, mixed_types
from steelyard.serve.quantize.options import QuantizeOptions
from steelyard.serve.quantize.result import LayerSummary, QuantizeResult
from steelyard.serve.quantize.sequences import Sequences, draw_sequences, read_tokens
from steelyard.serve.quantize.staging import (
    RECORD,
    continue_or_clear,
    read_source,
    refuse_small_disk,
    refuse_small_memory,
)

__all__ = ["quantize"]

Advance = Callable[[float, str], None]


def quantize(
    source: Path,
    out: Path,
    options: QuantizeOptions,
    *,
    advance: Advance = lambda done, words: None,
) -> QuantizeResult:
    """Quantize a model into a folder that the engine and `transformers` read.

    The folder appears when it is complete, in one step; an older one stays until then. What a
    killed run had finished stands in a hidden folder beside it, and is gone on with.

    Args:
        source: Hugging Face folder of a decoder.
        out: folder to make or replace.
        options: how.
        advance: told the share that is done, and a few words.

    Returns:
        What was written and what it costs.

    Raises:
        ConfigError: the options do not fit the model, it is quantized already, or `out` holds
            something else.
        DataError: there is no model, or too little text.
        CapacityError: the disk or the memory cannot hold what is needed.
        InfeasibleError: no types keep the budget.
        StoreError: another process works on the same folder.
    """
    config = read_source(source, out)
    stage = out.with_name(f".{out.name}.quantizing")
    with exclusive(stage), torch_threads(options.threads):
        continue_or_clear(stage, source, options)
        model = checkpoint.load(source, dtype=None)
        refuse_small_disk(model, stage, len(options.methods))
        text = read_tokens(options.calibrate, source)
        return _Job(model, config, source, stage, options, advance).run(text, out)


@dataclass(frozen=True, slots=True)
class _Job:
    """One quantization of a model that is loaded."""

    model: Transformer
    config: dict[str, Any]
    source: Path
    stage: Path
    options: QuantizeOptions
    advance: Advance

    def run(self, text: Tensor, out: Path) -> QuantizeResult:
        """Do everything that is left, and put the folder in its place."""
        options, model = self.options, self.model
        self.advance(0.0, "the model's own outputs")
        sequences = draw_sequences(
            model,
            text,
            calibration_tokens=options.calibration_tokens,
            fits=options.calibrate is not None and options.weights != "int8",
            seed=options.seed,
        )
        refuse_small_memory(model, sequences, len(options.methods) + 1)
        count = model.architecture.num_layers
        begun, mixture = 0.0, None
        types = uniform(count, options.weights) if options.weights != "mixed" else ()
        if options.weights == "mixed":
            begun = 0.5
            mixture = mixed_types(
                model,
                sequences,
                options,
                self.stage / "types.json",
                lambda done, words: self.advance(begun * done / count, words),
            )
            types = mixture.types
        recipe = StackRecipe(types=types, group=options.group, zero_points=options.zero_points)
        losses = quantize_stack(
            model,
            self.config["model_type"],
            recipe,
            cast(tuple[Method, ...], options.methods),
            self.stage / "layers",
            tokens=sequences.tokens,
            calibration=sequences.calibration,
            passages={"choice": sequences.choice, **sequences.passages},
            advance=lambda done, words: self.advance(
                begun + (1 - begun) * done / count, f"layer {done} of {count} {words}"
            ),
        )
        tried = {name: _change(losses, name, "choice") for name in options.methods}
        method = min(tried, key=lambda name: tried[name])
        made = self.stage / "folder"
        layers = (self.stage / "layers", method)
        total = write_quantized(model, self.config, self.source, recipe, layers, made)
        result = QuantizeResult(
            folder=str(out),
            text=str(options.calibrate or "text of this Python installation"),
            method=method,
            tried=tried,
            losses_before=_means(losses["before"], sequences),
            losses_after=_means(losses[method], sequences),
            spread={
                name: float((losses[method][name] - losses["before"][name]).std())
                / math.sqrt(len(losses[method][name]))
                for name in sequences.passages
            },
            tokens=_token_counts(sequences),
            bytes_before=sum(item.nbytes for item in model.state_dict().values()),
            bytes_after=total,
            layers=self._summaries(recipe, method),
            checks=[] if mixture is None else [_check(mixture, losses, method, out)],
        )
        write_json(made / RECORD, result.values())
        replace_folder(made, out)
        shutil.rmtree(self.stage)
        return result

    def _summaries(self, recipe: StackRecipe, method: str) -> list[LayerSummary]:
        """Say how each layer is stored."""
        found = []
        for index, types in enumerate(recipe.types):
            path = layer_file(self.stage / "layers", method, index)
            found.append(
                LayerSummary(
                    layer=index,
                    types=dict(types),
                    method=method if "int4" in types.values() else "nearest",
                    num_bytes=path.stat().st_size,
                )
            )
        return found


def _change(losses: dict[str, Losses], method: str, passage: str) -> float:
    """Return the mean change of the loss, nats per token."""
    return float((losses[method][passage] - losses["before"][passage]).mean())


def _means(losses: Losses, sequences: Sequences) -> dict[str, float]:
    """Return the mean loss of each measured passage."""
    return {name: float(losses[name].mean()) for name in sequences.passages}


def _token_counts(sequences: Sequences) -> dict[str, int]:
    """Return the predicted tokens of each measured passage."""
    length = sequences.tokens.shape[1]
    return {
        name: len(sequences.tokens[part.rows]) * (length - max(1, part.first))
        for name, part in sequences.passages.items()
    }


def _check(mixture: Mixture, losses: dict[str, Losses], method: str, out: Path) -> Check:
    """Set the forecast loss on the text kept aside beside the measured one."""
    before, after = losses["before"]["text"], losses[method]["text"]
    measured = Measurement(
        quantity="eval.loss",
        value=float(after.mean()),
        spread=float(after.std()),
        count=len(after),
        machine=out.name,
    )
    return Check(mixture.forecast(float(before.mean()), len(after)), measured)
