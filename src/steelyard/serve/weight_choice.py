"""Which number type the weights of a served model are computed in: the fastest that loses little.

It knows no tensors: `plan` asks it before there are any, the engine before it loads them.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.engine_rates import EngineRates
from steelyard.catalog.huggingface import from_huggingface
from steelyard.catalog.stored import load_calibration
from steelyard.cost.engine_step import EngineStepTime, PartTime, decode_features
from steelyard.cost.step_time import step_features
from steelyard.cost.weights import WEIGHT_LOSSES, WEIGHT_TYPES, StoredWidth, WeightLoss
from steelyard.errors import CalibrationError, SteelyardError
from steelyard.native import switched_off
from steelyard.nn.traits import beyond_kernels
from steelyard.quantity import Forecast
from steelyard.serve.options import EngineOptions

__all__ = ["ServingLoad", "WeightCandidate", "WeightChoice", "choose_weights", "with_weights"]

_STORED = {"F64": "fp32", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}
"""Types of weights by the names that safetensors has."""
_HALF = StoredWidth("fp32", 2.0)
"""Float16, which products of float32 widen as they read it."""
_MOST_HEADER_BYTES = 100_000_000
_KV_NAMES = {"float32": "fp32", "bfloat16": "bf16", "int8": "int8"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingLoad:
    """What is asked of a served model, as far as it decides on the type of its weights.

    Attributes:
        users: requests that decode together.
        prompt_tokens: tokens of a prompt.
        output_tokens: tokens of an answer; 0 for decoding alone, at the end of the prompt.
    """

    users: int = 4
    prompt_tokens: int = 512
    output_tokens: int = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightCandidate:
    """A type of weights with what is forecast of it.

    Attributes:
        weights: name of the type.
        loss: relative increase of perplexity over the stored weights, with its provenance.
        tpot: time per output token of one request alone.
        step_tpot: the same of all users of the load together: that of one step.
        busy_tpot: the same with the prompts that come meanwhile.
        parts: the parts of a step of all users.
    """

    weights: str
    loss: WeightLoss
    tpot: Forecast
    step_tpot: Forecast
    busy_tpot: Forecast
    parts: tuple[PartTime, ...]

    @property
    def is_memory(self) -> bool:
        """Whether memory binds most of a step of all users, and not products."""
        bounds = [(item.bound_s, item.is_memory) for item in self.parts]
        return 2 * sum(s for s, is_memory in bounds if is_memory) >= sum(s for s, _ in bounds)


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightChoice:
    """The type of weights that was chosen.

    Attributes:
        weights: name of the type.
        stored: type in which the weights are stored.
        max_loss: largest relative increase of perplexity that was allowed.
        candidates: all types with rates, the fastest first, allowed or not.
    """

    weights: str
    stored: str
    max_loss: float
    candidates: tuple[WeightCandidate, ...]

    def words(self) -> str:
        """Say what was chosen, why, and what a larger loss would give, in a line."""
        chosen = next(item for item in self.candidates if item.weights == self.weights)
        text = (
            f"{self.weights} weights are forecast fastest within a loss of {self.max_loss:.2%} "
            f"(stored as {self.stored}): {chosen.tpot.value * 1e3:.3g} ms per token alone, "
            f"{chosen.busy_tpot.value * 1e3:.3g} ms in company"
        )
        faster = self.candidates[0]
        if faster is chosen:
            return text
        return text + (
            f"; {faster.weights} would take {faster.tpot.value * 1e3:.3g} ms "
            f"(--max-loss {faster.loss.value:g}: perplexity {faster.loss.value:+.2%}, "
            f"{faster.loss.provenance})"
        )


def choose_weights(
    arch: Architecture,
    rates: EngineRates,
    load: ServingLoad | None = None,
    *,
    stored: str = "fp32",
    max_loss: float = 0.0,
    kv: str = "",
    disturbance: float = 0.0,
) -> WeightChoice:
    """Choose the type of weights that is forecast fastest within a loss of quality.

    A token's time is that of a decoding step of all users, and of the prompts that come meanwhile.

    Args:
        arch: dense decoder.
        rates: what the engine's kernels reach on the machine.
        load: what is asked of the model; four users by default.
        stored: type in which the weights are stored, one with a loss or "fp16"; types that hold its
            numbers lose nothing.
        max_loss: largest relative increase of perplexity, such as .01.
        kv: type of keys and values; fp32 beside fp32 weights, else bf16, by default.
        disturbance: relative error that other work left in the rates.

    Returns:
        The choice with all types that have rates.
    """
    load = load or ServingLoad()
    times = [
        EngineStepTime(
            arch=arch,
            rates=rates,
            weights=kind,
            kv=kv or ("fp32" if kind == "fp32" else "bf16"),
            stored=_halves(arch) if (kind, stored) == ("fp32", "fp16") else {},
        )
        for kind in rates.types
    ]
    found = [_candidate(item.disturbed(disturbance), load, stored) for item in times]
    found.sort(key=lambda item: item.busy_tpot.value)
    # The stored type itself loses nothing, so that one is always allowed where it has rates.
    allowed = [item for item in found if item.loss.value <= max_loss] or found
    return WeightChoice(
        weights=allowed[0].weights, stored=stored, max_loss=max_loss, candidates=tuple(found)
    )


def _candidate(model: EngineStepTime, load: ServingLoad, stored: str) -> WeightCandidate:
    """Forecast a type."""
    context = load.prompt_tokens + load.output_tokens / 2
    alone_s = float(model.predict(decode_features(1, context)))
    parts = model.parts(decode_features(load.users, context))
    step_s = sum(item.seconds for item in parts)
    # While an answer is decoded, as many prompts as there are other users take the machine.
    prompts = (load.users - 1) / load.output_tokens if load.output_tokens else 0.0
    tpot, step, busy = (
        Forecast.about(
            "serve.tpot",
            seconds,
            relative=model.relative_spread,
            provenance="derived",
            source=model.source,
        )
        for seconds in (alone_s, step_s, step_s + prompts * _prompt_s(model, load.prompt_tokens))
    )
    return WeightCandidate(
        weights=model.weights,
        loss=_loss(model.weights, stored),
        tpot=tpot,
        step_tpot=step,
        busy_tpot=busy,
        parts=tuple(parts),
    )


def _prompt_s(model: EngineStepTime, tokens: int) -> float:
    """Forecast a step with one prompt."""
    features = step_features(
        sequences=1,
        prefill_tokens=tokens,
        prefill_kv=tokens * (tokens + 1) / 2,
        decode_tokens=0,
        decode_kv=0,
    )
    return float(model.predict(features))


def _loss(weights: str, stored: str) -> WeightLoss:
    """Return what a type loses of weights that are stored in another."""
    # Float16 has three bits more for digits than the other type of two bytes.
    least = WEIGHT_TYPES["fp32" if stored == "fp16" else stored].bytes_per_weight
    if WEIGHT_TYPES[weights].bytes_per_weight >= least:
        return WeightLoss(0.0, "derived", "no narrower than what is stored")
    return WEIGHT_LOSSES[weights]


def _halves(arch: Architecture) -> dict[str, tuple[StoredWidth, ...]]:
    """Return matrices that are kept in float16, one for each layer."""
    layers = dict.fromkeys(("qkv", "out", "up", "down"), (_HALF,) * arch.num_layers)
    return layers | {"head": (_HALF,)}


def with_weights(
    options: EngineOptions, folder: Path
) -> tuple[EngineOptions, WeightChoice | None, str]:
    """Replace "auto" weights by the type that is forecast fastest for a model on this machine.

    Args:
        options: kind of engine.
        folder: folder of the model.

    Returns:
        The options, the choice, and a line that says what was done. Options stay as they are, and
        there is no choice, where a type is given; where the engine's native kernels will not run;
        for weights that are stored in fewer than 16 bits, or in one GGUF file; and where this
        machine was not calibrated.
    """
    if options.weights != "auto" or options.cache != "full":
        return options, None, ""
    stored = _stored_type(folder)
    if not stored or options.native is False or switched_off():
        return options, None, ""
    try:
        calibration = load_calibration()
    except CalibrationError as error:
        return options, None, f"weights as stored: {error}; {error.hint}"
    if calibration is None or calibration.engine is None:
        note = "weights as stored: `steelyard calibrate` measures which type is faster here"
        return options, None, note
    try:
        arch = from_huggingface(folder / "config.json")
    except SteelyardError:
        return options, None, ""  # who loads the model says what is wrong with it
    beyond = beyond_kernels(arch)
    if beyond:
        note = f"weights as stored: no rates of products forecast {' and '.join(beyond)}"
        return options, None, note
    choice = choose_weights(
        arch,
        calibration.engine,
        stored=stored,
        max_loss=options.max_loss,
        kv=_KV_NAMES.get(options.kv_dtype, ""),
        disturbance=calibration.disturbance,
    )
    given = replace(options, weights=choice.weights, max_loss=0.0)
    return given, choice, choice.words()


def _stored_type(folder: Path) -> str:
    """Return the type that most bytes of a folder's weights have; empty for none of ours."""
    sizes: Counter[str] = Counter()
    try:
        if "quantization_config" in json.loads((folder / "config.json").read_bytes()):
            return ""
        for path in folder.glob("*.safetensors"):
            with path.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(min(length, _MOST_HEADER_BYTES)))
            sizes.update(_sizes(item for name, item in header.items() if name != "__metadata__"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ""  # who loads the model says what is wrong with it
    return _STORED.get(sizes.most_common(1)[0][0], "") if sizes else ""


def _sizes(entries: Iterable[dict]) -> Counter[str]:
    """Sum the bytes of tensors by type."""
    sizes: Counter[str] = Counter()
    for entry in entries:
        start, stop = entry["data_offsets"]
        sizes[entry["dtype"]] += stop - start
    return sizes
