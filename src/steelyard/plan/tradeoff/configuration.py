"""One way to serve a model: its engine, its positions, and what becomes of prompts."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from steelyard.errors import ConfigError, require
from steelyard.plan.tradeoff.techniques import refuse_pairs

if TYPE_CHECKING:
    from steelyard.nn.transformer import Transformer
from steelyard.serve.options import CacheName, EngineOptions, WeightsName

__all__ = ["BASELINE", "Configuration", "positioned", "standard_configurations"]

Positions = Literal["trained", "linear", "ntk", "yarn"]
PromptKind = Literal["whole", "selective", "retrieved"]
_BUDGET = 512
_POSITIONS = {"linear": "position-interpolation", "ntk": "ntk-aware", "yarn": "yarn"}
_CACHES = {
    "window": "window-attention",
    "sinks": "attention-sinks",
    "h2o": "heavy-hitters",
    "adaptive": "token-release",
}
_KV = {"bfloat16": "kv-bf16", "int8": "kv-int8"}
_PROMPTS = {"selective": "selective-context", "retrieved": "retrieval"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """One way to serve a model; the defaults are the dense model in full precision.

    Attributes:
        name: what it is called.
        weights: type of the weights, as `EngineOptions.weights` without "auto".
        kv_dtype: type of keys and values, as there.
        cache: what of a sequence is kept, as there.
        cache_tokens: tokens kept where the cache is bounded.
        positions: how rotary positions reach beyond the trained ones.
        stretch: how many times farther they are to reach, at least 1.
        score_scale: factor of all attention scores.
        prompt: whether contexts are read whole, without what is predictable, or only where they
            share rare tokens with the question.
        prompt_kept: share of the context's tokens that is kept, in (0, 1].
        token_budget: most tokens of a step.
        prefix_caching: whether equal beginnings are computed once.
        speculate: "off" or "ngram".
    """

    name: str
    weights: WeightsName = "fp32"
    kv_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    cache: CacheName = "full"
    cache_tokens: int = 0
    positions: Positions = "trained"
    stretch: float = 1.0
    score_scale: float = 1.0
    prompt: PromptKind = "whole"
    prompt_kept: float = 1.0
    token_budget: int = _BUDGET
    prefix_caching: bool = False
    speculate: Literal["off", "ngram"] = "off"

    def __post_init__(self) -> None:
        """Refuse values out of range and techniques that exclude each other.

        Raises:
            ConfigError: names the field and its range, or the pair and the reason.
        """
        require(
            self,
            weights=(self.weights != "auto", "a type, as a comparison needs one"),
            stretch=(1 <= self.stretch < math.inf, "at least 1"),
            score_scale=(0 < self.score_scale < math.inf, "above 0"),
            prompt_kept=(0 < self.prompt_kept <= 1, "in (0, 1]"),
            token_budget=(self.token_budget >= 1, "at least 1"),
            cache_tokens=(self.cache_tokens >= 0, "at least 0"),
        )
        if (self.positions == "trained") != (self.stretch == 1):
            raise ConfigError(
                f"{self.name}: positions {self.positions!r} with stretch {self.stretch}",
                hint="give positions linear, ntk or yarn and a stretch above 1, or neither",
            )
        if (self.prompt == "whole") != (self.prompt_kept == 1):
            raise ConfigError(
                f"{self.name}: prompt {self.prompt!r} with prompt_kept {self.prompt_kept}",
                hint="give prompt selective or retrieved and a share below 1, or neither",
            )
        refuse_pairs(self.techniques)

    @property
    def techniques(self) -> tuple[str, ...]:
        """Names of the techniques in use, as `techniques` knows them."""
        found = (
            _POSITIONS.get(self.positions),
            "score-temperature" if self.score_scale != 1 else None,
            _CACHES.get(self.cache),
            f"weights-{self.weights}" if self.weights != "fp32" else None,
            _KV.get(self.kv_dtype),
            _PROMPTS.get(self.prompt),
            "chunked-prefill" if self.token_budget < _BUDGET else None,
            "prefix-caching" if self.prefix_caching else None,
            "speculative-decoding" if self.speculate != "off" else None,
        )
        return tuple(name for name in found if name)

    @property
    def is_bounded(self) -> bool:
        """Whether a sequence keeps a bounded number of tokens."""
        return self.cache != "full"

    def options(self, pool_bytes: int, max_model_len: int = 0) -> EngineOptions:
        """Return the options of its engine.

        Args:
            pool_bytes: memory for keys and values.
            max_model_len: longest sequence, 0 for what the pool and the model allow.

        Returns:
            Options of an engine.
        """
        return EngineOptions(
            pool_bytes=pool_bytes,
            max_model_len=max_model_len,
            token_budget=self.token_budget,
            weights="auto" if self.is_bounded else self.weights,
            kv_dtype="model" if self.is_bounded else self.kv_dtype,
            cache=self.cache,
            cache_tokens=self.cache_tokens,
            prefix_caching=self.prefix_caching and not self.is_bounded,
            speculate=self.speculate,
        )


BASELINE = Configuration(name="dense")
"""The model as it was trained, in full precision, with nothing spared."""


def standard_configurations(
    *, stretch: float = 4.0, cache_tokens: int = 128, sharpened: float = 1.2
) -> list[Configuration]:
    """Return the baseline, each technique that runs here by itself, and some combinations.

    Args:
        stretch: how many times farther positions are to reach.
        cache_tokens: tokens that bounded caches keep.
        sharpened: factor of attention scores for "score-temperature".

    Returns:
        Configurations with different names, the baseline first.
    """
    tokens = cache_tokens
    far = replace(BASELINE, name="yarn", positions="yarn", stretch=stretch)
    return [
        BASELINE,
        replace(BASELINE, name="position interpolation", positions="linear", stretch=stretch),
        replace(BASELINE, name="NTK-aware", positions="ntk", stretch=stretch),
        far,
        replace(BASELINE, name="sharper scores", score_scale=sharpened),
        replace(BASELINE, name="window", cache="window", cache_tokens=tokens),
        replace(BASELINE, name="sinks and window", cache="sinks", cache_tokens=tokens),
        replace(BASELINE, name="heavy hitters", cache="h2o", cache_tokens=tokens),
        replace(BASELINE, name="KV int8", kv_dtype="int8"),
        replace(BASELINE, name="weights int8", weights="int8"),
        replace(BASELINE, name="weights int4", weights="int4"),
        replace(BASELINE, name="selective context", prompt="selective", prompt_kept=0.5),
        replace(BASELINE, name="retrieval", prompt="retrieved", prompt_kept=0.5),
        replace(BASELINE, name="chunked prefill", token_budget=128),
        replace(BASELINE, name="prefix cache", prefix_caching=True),
        replace(BASELINE, name="speculation", speculate="ngram"),
        replace(far, name="yarn, weights int8, KV int8", weights="int8", kv_dtype="int8"),
        replace(BASELINE, name="sharper scores, KV int8", score_scale=sharpened, kv_dtype="int8"),
        replace(BASELINE, name="weights int8, KV int8", weights="int8", kv_dtype="int8"),
    ]


def positioned(model: "Transformer", chosen: Configuration, num_positions: int) -> "Transformer":
    """Return a model whose positions and scores are those of a configuration.

    Args:
        model: a decoder with rotary positions, without a scaling of its own where the
            configuration has one; its weights are shared.
        chosen: the configuration.
        num_positions: longest sequence that will be run.

    Returns:
        The model, in evaluation mode.

    Raises:
        ConfigError: the model has no rotary positions, or a scaling already.

    Source: Peng et al. 2023 (arXiv 2309.00071), definition 1 (NTK-aware) and section 3.4 (YaRN).
    """
    from steelyard.nn.rotary import RotaryScaling, yarn_magnitude
    from steelyard.nn.transformer import Transformer

    arch = model.architecture
    scaling = model.scaling
    is_changed = chosen.positions != "trained" or chosen.score_scale != 1
    is_scaled = chosen.positions != "trained" and scaling is not None
    if is_changed and (is_scaled or arch.position != "rope"):
        raise ConfigError(
            f"{chosen.name}: {arch.name} has positions {arch.position!r}"
            + (" that are scaled already" if scaling else ""),
            hint="leave position techniques out",
        )
    theta = arch.rope_theta
    if chosen.positions == "linear":
        scaling = RotaryScaling(factor=chosen.stretch)
    elif chosen.positions == "ntk":
        theta *= chosen.stretch ** (arch.turned_dim / (arch.turned_dim - 2))
    elif chosen.positions == "yarn":
        scaling = RotaryScaling(
            factor=chosen.stretch,
            low=1.0,
            high=32.0,
            original_positions=arch.max_positions,
            is_yarn=True,
            magnitude=yarn_magnitude(chosen.stretch),
        )
    if chosen.score_scale != 1:
        # Scores are products of queries and keys, and both are turned with the magnitude.
        scaling = scaling or RotaryScaling(factor=1.0)
        scaling = replace(scaling, magnitude=scaling.magnitude * chosen.score_scale**0.5)
    shape = replace(arch, max_positions=num_positions, rope_theta=theta)
    made = Transformer(shape, scaling)
    made.load_state_dict(model.state_dict(), assign=True)
    return made.eval()
