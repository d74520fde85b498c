"""Rotary scaling in a Hugging Face `config.json`, read and written."""

import dataclasses
import math
import warnings
from typing import Any

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.huggingface import rotary_kind
from steelyard.catalog.huggingface_config import ConfigFields
from steelyard.errors import ConfigError, SteelyardWarning
from steelyard.nn.rotary import RotaryScaling, yarn_magnitude

__all__ = ["read_scaling", "scaling_fields", "within_factors"]


def read_scaling(config: dict[str, Any], where: str, width: int) -> RotaryScaling | None:
    """Read the rotary scaling, in any of the forms in which configurations have it.

    Args:
        config: the parsed file.
        where: the file, for messages.
        width: columns of a head that are turned.

    Returns:
        The scaling, None without.

    Raises:
        ConfigError: the scaling is of an unknown type, or lacks a field.
        CatalogError: it is no table.
    """
    rope = ConfigFields(config, where).rope()
    kind = rotary_kind(rope)
    fields = rope.values
    try:
        if kind == "default":
            return None
        if kind == "linear":
            return RotaryScaling(factor=float(fields["factor"]))
        if kind == "llama3":
            low, high = float(fields["low_freq_factor"]), float(fields["high_freq_factor"])
            original = int(fields["original_max_position_embeddings"])
            return RotaryScaling(
                factor=float(fields["factor"]), low=low, high=high, original_positions=original
            )
        if kind == "yarn":
            return _yarn(fields, int(config["max_position_embeddings"]), width)
        # The first Phi-3 files call it "su".
        if kind in ("longrope", "su"):
            return _long_rope(fields, int(config["max_position_embeddings"]), width)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: rotary scaling {kind!r} lacks a usable {error}",
            hint="give the model's complete config.json",
        ) from error
    raise ConfigError(
        f"{where}: rotary scaling {kind!r} is not supported",
        hint="supported: linear, llama3, longrope, yarn, or none",
    )


def _yarn(fields: dict[str, Any], positions: int, width: int) -> RotaryScaling:
    """Read YaRN, with the two weights that DeepSeek gives its magnitude."""
    # Two columns would have one wavelength, between which and the next nothing is blended.
    if fields.get("truncate", True) is not True or width < 4:
        raise ValueError("truncate = true and at least 4 turned columns")
    factor = float(fields["factor"])
    weight, of_scores = (float(fields.get(name) or 0.0) for name in ("mscale", "mscale_all_dim"))
    magnitude = yarn_magnitude(factor)
    if weight and of_scores:
        magnitude = yarn_magnitude(factor, weight) / yarn_magnitude(factor, of_scores)
    given = fields.get("attention_factor")
    return RotaryScaling(
        factor=factor,
        low=float(fields.get("beta_slow") or 1.0),
        high=float(fields.get("beta_fast") or 32.0),
        original_positions=int(fields.get("original_max_position_embeddings") or positions),
        is_yarn=True,
        score_weight=of_scores,
        magnitude=magnitude if given is None else float(given),
    )


def _long_rope(fields: dict[str, Any], positions: int, width: int) -> RotaryScaling:
    """Read the factors of Phi-3, one for each wavelength."""
    original = int(fields["original_max_position_embeddings"])
    short, long = (
        tuple(float(factor) for factor in fields[name]) for name in ("short_factor", "long_factor")
    )
    if not len(short) == len(long) == width // 2:
        raise ValueError(f"short_factor and long_factor of {width // 2} numbers each")
    factor = float(fields.get("factor", positions / original))
    magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RotaryScaling(
        factor=factor,
        original_positions=original,
        stretches=short,
        long_stretches=long,
        magnitude=float(fields.get("attention_factor", magnitude)),
    )


def within_factors(
    arch: Architecture, scaling: RotaryScaling | None, max_positions: int | None, where: str
) -> Architecture:
    """Shorten a model whose rotary factors differ beyond the length trained first.

    Args:
        arch: architecture of the model.
        scaling: its rotary scaling, or None.
        max_positions: longest sequence that will be run; None warns that it is the shorter one.
        where: the file, for the warning.

    Returns:
        The architecture, with the length trained first unless longer sequences will be run.
    """
    if not scaling or not scaling.stretches or arch.max_positions <= scaling.original_positions:
        return arch
    original = scaling.original_positions
    if max_positions is None:
        warnings.warn(
            f"{where}: its rotary factors differ up to and beyond {original} tokens; those up to "
            f"{original} are taken, so max_positions is {original}, not {arch.max_positions}",
            SteelyardWarning,
            stacklevel=4,
        )
    return (
        arch
        if (max_positions or 0) > original
        else (dataclasses.replace(arch, max_positions=original))
    )


def scaling_fields(scaling: RotaryScaling) -> dict[str, Any]:
    """Write a rotary scaling as `read_scaling` reads it.

    Args:
        scaling: scaling of a model's positions.

    Returns:
        The value of `rope_scaling`, and fields beside it.
    """
    if scaling.stretches:
        fields = {
            "rope_type": "longrope",
            "factor": scaling.factor,
            "attention_factor": scaling.magnitude,
            "short_factor": list(scaling.stretches),
            "long_factor": list(scaling.long_stretches),
            "original_max_position_embeddings": scaling.original_positions,
        }
        beside = {"original_max_position_embeddings": scaling.original_positions}
        return {"rope_scaling": fields} | beside
    if math.isinf(scaling.high):
        return {"rope_scaling": {"rope_type": "linear", "factor": scaling.factor}}
    if scaling.is_yarn:
        fields = {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "beta_slow": scaling.low,
            "beta_fast": scaling.high,
            "attention_factor": scaling.magnitude,
            "mscale_all_dim": scaling.score_weight,
            "original_max_position_embeddings": scaling.original_positions,
        }
        return {"rope_scaling": fields}
    limits = {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
    fields = {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_positions,
    }
    return {"rope_scaling": fields | limits}
