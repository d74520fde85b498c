"""Quantize a model into a folder: everything from its checks to the finished folder."""

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from steelyard.files import exclusive, replace_folder, write_json
from steelyard.nn import checkpoint
from steelyard.nn.quantizing.folder import write_quantized
from steelyard.nn.quantizing.layer import Method, StoredType
from steelyard.nn.quantizing.stack import (
    Losses,
    StackRecipe,
    layer_file,
    quantize_stack,
    uniform,
)
from steelyard.nn.traits import refuse_beyond_kernels, refuse_unserved
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
        refuse_unserved(model.architecture)
        refuse_beyond_kernels(model.architecture, "quantized")
        # These refusals come before the first minute of work, not at its end.
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
            # Eight bits per channel need no sample: nothing is fitted to it.
            fits=options.calibrate is not None and options.weights != "int8",
            seed=options.seed,
        )
        refuse_small_memory(model, sequences, len(options.methods) + 1)
        mixture = None if options.weights != "mixed" else self._mixture(sequences)
        recipe = StackRecipe(
            types=mixture.types if mixture else self._uniform(),
            group=options.group,
            zero_points=options.zero_points,
        )
        losses = self._rounded(recipe, sequences)
        tried = {name: _change(losses, name, "choice") for name in options.methods}
        method = min(tried, key=lambda name: tried[name])
        made, layers = self.stage / "folder", (self.stage / "layers", method)
        total = write_quantized(model, self.config, self.source, recipe, layers, made)
        result = QuantizeResult(
            folder=str(out),
            text=str(options.calibrate or "text of this Python installation"),
            method=method,
            tried=tried,
            losses_before=_means(losses["before"], sequences),
            losses_after=_means(losses[method], sequences),
            spread=_spreads(losses, method, sequences),
            tokens=_token_counts(sequences),
            bytes_before=sum(item.nbytes for item in model.state_dict().values()),
            bytes_after=total,
            layers=self._summaries(recipe, method),
            checks=[_check(mixture, losses, method)] if mixture else [],
        )
        # The record goes in first, so that no finished folder stands without one.
        write_json(made / RECORD, result.values())
        replace_folder(made, out)
        shutil.rmtree(self.stage)
        return result

    def _uniform(self) -> tuple[Mapping[str, StoredType], ...]:
        """Return the one type of all matrices."""
        kind = cast(StoredType, self.options.weights)
        return uniform(self.model.architecture.num_layers, kind)

    def _mixture(self, sequences: Sequences) -> Mixture:
        """Choose the type of each matrix; half of the work under "mixed"."""
        count = self.model.architecture.num_layers
        return mixed_types(
            self.model,
            sequences,
            self.options,
            self.stage / "types.json",
            lambda done, words: self.advance(0.5 * done / count, words),
        )

    def _rounded(self, recipe: StackRecipe, sequences: Sequences) -> dict[str, Losses]:
        """Round the model with each method, and return the losses."""
        count = self.model.architecture.num_layers
        begun = 0.5 if self.options.weights == "mixed" else 0.0

        def advance(done: int, words: str) -> None:
            share = begun + (1 - begun) * done / count
            self.advance(share, f"layer {done} of {count} {words}")

        return quantize_stack(
            self.model,
            self.config["model_type"],
            recipe,
            cast(tuple[Method, ...], self.options.methods),
            self.stage / "layers",
            tokens=sequences.tokens,
            calibration=sequences.calibration,
            passages={"choice": sequences.choice, **sequences.passages},
            advance=advance,
        )

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


def _spreads(losses: dict[str, Losses], method: str, sequences: Sequences) -> dict[str, float]:
    """Return the standard error of the change of the loss on each measured passage."""
    changes = {name: losses[method][name] - losses["before"][name] for name in sequences.passages}
    return {name: float(item.std()) / math.sqrt(len(item)) for name, item in changes.items()}


def _token_counts(sequences: Sequences) -> dict[str, int]:
    """Return the predicted tokens of each measured passage."""
    length = sequences.tokens.shape[1]
    return {
        # The first token of a sequence is predicted by nothing.
        name: len(sequences.tokens[part.rows]) * (length - max(1, part.first))
        for name, part in sequences.passages.items()
    }


def _check(mixture: Mixture, losses: dict[str, Losses], method: str) -> Check:
    """Set the forecast loss on the text kept aside beside the measured one."""
    before, after = losses["before"]["text"], losses[method]["text"]
    measured = Measurement(
        quantity="eval.loss",
        value=float(after.mean()),
        spread=float(after.std()),
        count=len(after),
    )
    return Check(mixture.forecast(float(before.mean()), len(after)), measured)
