"""Checks of single catalog records; every message names file, record and field."""

import math
from dataclasses import fields
from typing import Any

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.datacenter import DataCenterSpec, RackGroup
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.catalog.storage import StorageTier
from steelyard.errors import CatalogError, merged

__all__ = ["CONFIDENCES", "validate", "validate_architecture"]

CONFIDENCES = ("high", "medium", "unsure", "measured")
"""Allowed values of `confidence`."""


def _check(record: object, where: str, rules: dict[str, tuple[bool, str]]) -> None:
    """Refuse all fields that break their rules, at once.

    Args:
        record: record that is checked.
        where: file and record, for messages.
        rules: whether the value of each field is good, and what is wrong with it otherwise.

    Raises:
        CatalogError: names each such field, its value and the problem.
    """
    broken = []
    for field, (is_good, problem) in rules.items():
        if not is_good:
            said = f"{where}: field {field!r} is {getattr(record, field)!r}{problem}"
            broken.append(CatalogError(said, hint="correct the field in that file"))
            broken[-1].field = field
    if broken:
        raise merged(broken)


def _positive(record: Any, *fields: str) -> dict[str, tuple[bool, str]]:
    """Make the rules of fields above 0; NaN breaks them too."""
    return {name: (getattr(record, name) > 0, ", but must be positive") for name in fields}


def _not_negative(record: Any, *fields: str) -> dict[str, tuple[bool, str]]:
    """Make the rules of fields of at least 0; NaN breaks them too."""
    return {name: (getattr(record, name) >= 0, ", but must not be negative") for name in fields}


def validate_architecture(arch: Architecture, *, where: str) -> None:
    """Refuse shapes that no model can have.

    Args:
        arch: record that is checked.
        where: file and record, for messages.

    Raises:
        CatalogError: a size is not positive, or sizes contradict each other.
    """
    sizes = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
    sizes += ("intermediate_size", "vocab_size", "max_positions", "rope_theta", "norm_eps")
    counts = ("num_experts", "experts_per_token", "num_shared_experts", "num_dense_layers")
    counts += ("num_expert_groups", "groups_per_token")
    counts += (
        "capacity_factor",
        "drop_path",
        "kv_lora_rank",
        "q_lora_rank",
        "local_rope_theta",
        "rotary_dim",
        "no_rope_every",
    )
    counts += ("sliding_window", "full_attention_every", "attention_scale", "attention_softcap")
    scales = ("embedding_scale", "residual_scale", "logit_divisor", "moe_every", "gate_scale")
    amounts = _not_negative(arch, *counts, "logit_softcap")
    # Sizes come first: the rules below divide by them.
    _check(arch, where, _positive(arch, *sizes, *scales) | amounts)
    rules = {
        "num_kv_heads": (
            arch.num_heads % arch.num_kv_heads == 0,
            f", which does not divide num_heads = {arch.num_heads}",
        ),
        "num_dense_layers": (
            arch.num_dense_layers <= arch.num_layers,
            f", more than num_layers = {arch.num_layers}",
        ),
    }
    rules |= _layer_rules(arch) | _mixer_rules(arch) | _expert_rules(arch)
    if arch.kv_lora_rank:
        rules["qk_rope_head_dim"] = (
            0 < arch.qk_rope_head_dim < arch.head_dim,
            f", but must be positive and below head_dim = {arch.head_dim}",
        )
        rules |= _positive(arch, "v_head_dim")
    _check(arch, where, rules)


def _layer_rules(arch: Architecture) -> dict[str, tuple[bool, str]]:
    """Make the rules of norms, rotations and windows."""
    return {
        "post_norm": (
            not (arch.post_norm and arch.sandwich_norm),
            ", but a layer with sandwich_norm has norms on both sides",
        ),
        "deepnorm": (
            not (arch.deepnorm and arch.subln),
            ", but subln is too: deepnorm has its norms after the residual add, subln before "
            "attention and MLP; choose one",
        ),
        "subln": (
            not arch.subln or not (arch.residual_norm or arch.post_norm or arch.sandwich_norm),
            ", but its norms stand before attention and MLP: leave residual_norm, post_norm and "
            "sandwich_norm out",
        ),
        "residual_norm": (
            not (arch.norms_sums and (arch.post_norm or arch.sandwich_norm)),
            f" and deepnorm {arch.deepnorm}, but post_norm or sandwich_norm is set",
        ),
        "unit_offset_norm": (
            not arch.unit_offset_norm or arch.norm == "rmsnorm",
            f", which norm = {arch.norm!r} does not have",
        ),
        "qk_norm_across_heads": (
            arch.qk_norm or not arch.qk_norm_across_heads,
            ", but qk_norm is false",
        ),
        "rotary_dim": (
            arch.rotary_dim <= arch.head_dim and arch.rotary_dim % 2 == 0,
            f", but must be even and at most head_dim = {arch.head_dim}",
        ),
        "full_attention_every": (
            arch.full_attention_every == 0 or arch.sliding_window > 0,
            ", but sliding_window is 0",
        ),
    }


def _expert_rules(arch: Architecture) -> dict[str, tuple[bool, str]]:
    """Make the rules of a mixture of experts."""
    if not arch.num_experts:
        without = ", but num_experts is 0"
        return {
            "router": (arch.router == "softmax", without),
            "capacity_factor": (arch.capacity_factor == 0, without),
            "num_expert_groups": (arch.num_expert_groups == 0, without),
        }
    most = arch.num_experts if arch.router in ("softmax", "sigmoid", "cosine") else 1
    is_plain = arch.router in ("softmax", "sigmoid")
    groups = arch.num_expert_groups
    reached = arch.groups_per_token * (arch.num_experts // groups if groups else 0)
    experts = {
        "router_bias": (
            not arch.router_bias or arch.router == "sigmoid",
            f", but router is {arch.router!r}, not 'sigmoid'",
        ),
        "gate_scale": (
            is_plain or arch.gate_scale == 1.0,
            f", but gates of router = {arch.router!r} are not scaled",
        ),
        "normalized_gates": (
            is_plain or arch.normalized_gates,
            f", but router is {arch.router!r}",
        ),
        "shared_expert_gate": (
            arch.num_shared_experts > 0 or not arch.shared_expert_gate,
            ", but num_shared_experts is 0",
        ),
        "num_expert_groups": (
            not groups or (is_plain and arch.num_experts % groups == 0),
            f", but must divide num_experts = {arch.num_experts} of a router of products",
        ),
        "groups_per_token": (
            0 < arch.groups_per_token <= groups and reached >= arch.experts_per_token
            if groups
            else not arch.groups_per_token,
            f", but must lie in [1, {groups}] and hold experts_per_token = "
            f"{arch.experts_per_token} experts"
            if groups
            else ", but num_expert_groups is 0",
        ),
        "experts_per_token": (
            0 < arch.experts_per_token <= most,
            f", but must lie in [1, {most}] with num_experts = {arch.num_experts} and router = "
            f"{arch.router!r}",
        ),
    }
    return experts | _positive(arch, "moe_intermediate_size")


def _mixer_rules(arch: Architecture) -> dict[str, tuple[bool, str]]:
    """Make the rules of what mixes tokens."""
    segments, rates = arch.dilated_segments, arch.dilated_rates
    pairs = list(zip(segments, rates, strict=False))
    is_paired = len(segments) == len(rates) > 0 and min(segments + rates) > 0
    return {
        "dilated_segments": (
            is_paired and all(segment % rate == 0 for segment, rate in pairs)
            if arch.mixer == "dilated"
            else not segments and not rates,
            f", but mixer = {arch.mixer!r} takes "
            + (
                "one rate per segment, which divides it"
                if arch.mixer == "dilated"
                else "no segments and no dilated_rates"
            ),
        ),
        "mixer": (
            arch.mixer != "retention" or (not arch.sliding_window and not arch.attention_softcap),
            ", which has neither windows nor caps",
        ),
        "head_dim": (
            arch.position not in ("rope", "xpos") or arch.head_dim % 2 == 0,
            f", but position = {arch.position!r} turns pairs of columns: it must be even",
        ),
        "drop_path": (arch.drop_path < 1, ", but must lie in [0, 1)"),
    }


def _levels_rule(cluster: Cluster) -> tuple[bool, str]:
    """Make the rule of a cluster's levels of links."""
    joined = math.prod(level.members for level in cluster.levels)
    possible = all(
        level.members >= 1
        and level.bytes_per_s > 0
        and level.latency_s >= 0
        and level.oversubscription >= 1
        for level in cluster.levels
    )
    return (
        not cluster.levels or (possible and joined == cluster.num_accelerators),
        f", but members >= 1, bytes_per_s > 0, latency_s >= 0 and oversubscription >= 1 must hold "
        f"in each level, and the members multiply to {cluster.num_accelerators} accelerators "
        f"(they multiply to {joined})",
    )


def _hardware_rules(record: Accelerator | Cluster | Site) -> dict[str, tuple[bool, str]]:
    """Make the rules of accelerators, clusters and sites."""
    at_least_it = "; facility power is at least IT power: 1 or more"
    if isinstance(record, Site):
        prices = _not_negative(record, "price_usd_per_kwh", "carbon_g_per_kwh")
        months = record.carbon_by_month
        return prices | {
            "pue": (record.pue >= 1, at_least_it),
            "carbon_by_month": (
                not months or (len(months) == 12 and min(months) > 0),
                ", but must hold a positive number for each of the 12 months",
            ),
        }
    if isinstance(record, Cluster):
        rates = ("node_memory_bytes", "scale_up_bytes_per_s", "injection_bytes_per_s")
        lists = ("rpeak_flops_per_s", "hpcg_flops_per_s", "hpl_power_w", "host_tdp_w")
        return (
            _positive(record, "num_nodes", "accelerators_per_node", "year")
            | _not_negative(record, *rates, *lists)
            | {
                "rmax_flops_per_s": (
                    0 <= record.rmax_flops_per_s <= (record.rpeak_flops_per_s or math.inf),
                    "; no run is faster than rpeak_flops_per_s = "
                    f"{record.rpeak_flops_per_s:g}: 0 when unknown, at most that",
                ),
                "pue": (record.pue == 0 or record.pue >= 1, f"{at_least_it}, or 0 for unknown"),
                "levels": _levels_rule(record),
            }
        )
    links = ("sram_bytes", "scale_up_bytes_per_s", "host_link_bytes_per_s")
    peaks = record.peak_flops_per_s
    return (
        _positive(record, "memory_bytes", "memory_bytes_per_s", "year")
        | _not_negative(record, *links, "tdp_w", "price_usd_per_hour", "purchase_usd")
        | {
            "idle_w": (
                0 <= record.idle_w <= (record.tdp_w or math.inf),
                f", but must lie in [0, tdp_w = {record.tdp_w:g}]",
            ),
            "peak_flops_per_s": (
                bool(peaks) and all(peak > 0 for peak in peaks.values()),
                ", but must hold at least one dtype's dense peak, each positive; leave unpublished "
                "peaks out",
            ),
        }
    )


def _datacenter_rules(record: DataCenterSpec) -> dict[str, tuple[bool, str]]:
    """Make the rules of data centers."""
    sizes = (
        "crac_units",
        "crac_m3_per_s_per_watt",
        "crac_reference_m3_per_s_per_watt",
        "chiller_cop",
    )
    sizes += ("pump_flow_m3_per_s", "water_reference_w", "liquid_rise_c")
    amounts = ("crac_fan_w", "chiller_w", "evaporator_drop_c", "economizer_approach_c")
    amounts += ("tower_fan_share", "pump_pressure_pa", "battery_j", "liquid_approach_c")
    racks = record.racks
    return (
        _positive(record, *sizes)
        | _not_negative(record, *amounts)
        | {
            "racks": (
                bool(racks) and all(map(_is_possible_rack, racks)),
                ", but must hold groups with racks and servers, each server with either a "
                "server_full_w above its server_idle_w or an accelerator and how many, and a "
                "positive flow",
            ),
            "setpoint_low_c": (
                record.setpoint_low_c < record.setpoint_high_c,
                f", but must be below setpoint_high_c = {record.setpoint_high_c} C",
            ),
            "inlet_limit_c": (
                record.inlet_limit_c <= record.inlet_allowable_c,
                f", more than inlet_allowable_c = {record.inlet_allowable_c} C",
            ),
            "design_outdoor_c": (
                -40 < record.design_outdoor_c < 60,
                ", but must lie between -40 and 60 C",
            ),
            "pump_efficiency": (0 < record.pump_efficiency <= 1, ", but must lie in (0, 1]"),
            "liquid_share": (0 <= record.liquid_share < 1, ", but must lie in [0, 1)"),
        }
    )


def _storage_rules(record: StorageTier) -> dict[str, tuple[bool, str]]:
    """Make the rules of storage tiers."""
    prices = [item.name for item in fields(record) if "usd_per" in item.name]
    return _not_negative(
        record, *prices, "first_byte_s", "bytes_per_s", "reads_per_s", "depth", "least_days"
    )


def _is_possible_rack(group: RackGroup) -> bool:
    """Say whether servers of a group can exist."""
    has_chips = bool(group.accelerator) and group.accelerators_per_server > 0
    is_rated = group.server_full_w > group.server_idle_w >= 0
    counts = min(group.racks, group.servers) > 0 and min(group.host_w, group.fan_w) >= 0
    return (
        counts
        and has_chips != (group.server_full_w > 0 and is_rated)
        and (group.server_flow_m3_per_s > 0)
    )


def validate(
    record: Architecture | Accelerator | Cluster | Site | DataCenterSpec | StorageTier,
    *,
    where: str,
) -> None:
    """Refuse a record that contradicts itself or does not say where it comes from.

    Args:
        record: catalog record of any kind.
        where: file and record, for messages.

    Raises:
        CatalogError: a field has an impossible value.
    """
    stated = {
        "confidence": (
            record.confidence in CONFIDENCES,
            f", not one of {', '.join(CONFIDENCES)}",
        ),
        "source": (bool(record.source), "; say where the facts stand"),
    }
    if isinstance(record, Architecture):
        _check(record, where, stated)
        validate_architecture(record, where=where)
    elif isinstance(record, DataCenterSpec):
        _check(record, where, stated | _datacenter_rules(record))
    elif isinstance(record, StorageTier):
        _check(record, where, stated | _storage_rules(record))
    else:
        _check(record, where, stated | _hardware_rules(record))
