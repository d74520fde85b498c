"""Checks of single catalog records beyond their types.

Every message names file, record and field.
"""

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.errors import CatalogError

__all__ = ["CONFIDENCES", "validate", "validate_architecture"]

CONFIDENCES = ("high", "medium", "unsure", "measured")
"""Allowed values of `confidence`."""


def _refuse(where: str, field: str, problem: str) -> CatalogError:
    """Make the error for one field of one record."""
    return CatalogError(
        f"{where}: field {field!r} {problem}", hint="correct the field in that file"
    )


def _positive(record: object, fields: tuple[str, ...], where: str) -> None:
    """Refuse zero and negative values."""
    for field in fields:
        if not getattr(record, field) > 0:
            raise _refuse(where, field, f"is {getattr(record, field)}, but must be positive")


def _not_negative(record: object, fields: tuple[str, ...], where: str) -> None:
    """Refuse negative values."""
    for field in fields:
        if not getattr(record, field) >= 0:
            raise _refuse(where, field, f"is {getattr(record, field)}, but must not be negative")


def validate_architecture(arch: Architecture, *, where: str) -> None:
    """Refuse shapes that no model can have.

    Args:
        arch: the record.
        where: file and record, for messages.

    Raises:
        CatalogError: a size is not positive, or sizes contradict each other.
    """
    sizes = (
        "hidden_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
        "max_positions",
    )
    _positive(arch, sizes, where)
    _not_negative(
        arch,
        (
            "num_experts",
            "experts_per_token",
            "num_shared_experts",
            "num_dense_layers",
            "kv_lora_rank",
            "q_lora_rank",
        ),
        where,
    )
    _positive(arch, ("rope_theta", "norm_eps"), where)
    if arch.num_heads % arch.num_kv_heads:
        raise _refuse(
            where,
            "num_kv_heads",
            f"is {arch.num_kv_heads}, which does not divide num_heads = {arch.num_heads}",
        )
    if arch.num_experts:
        _positive(arch, ("experts_per_token", "moe_intermediate_size"), where)
        if arch.experts_per_token > arch.num_experts:
            raise _refuse(
                where,
                "experts_per_token",
                f"is {arch.experts_per_token}, more than num_experts = {arch.num_experts}",
            )
    if arch.num_dense_layers > arch.num_layers:
        raise _refuse(
            where,
            "num_dense_layers",
            f"is {arch.num_dense_layers}, more than num_layers = {arch.num_layers}",
        )
    if arch.kv_lora_rank:
        _positive(arch, ("qk_rope_head_dim", "v_head_dim"), where)
        if arch.qk_rope_head_dim >= arch.head_dim:
            raise _refuse(
                where,
                "qk_rope_head_dim",
                f"is {arch.qk_rope_head_dim}, but must be below head_dim = {arch.head_dim}",
            )


def _validate_accelerator(record: Accelerator, where: str) -> None:
    """Refuse accelerators without memory or a peak."""
    _positive(record, ("memory_bytes", "memory_bytes_per_s", "year"), where)
    optional = (
        "sram_bytes",
        "scale_up_bytes_per_s",
        "host_link_bytes_per_s",
        "tdp_w",
        "price_usd_per_hour",
    )
    _not_negative(record, optional, where)
    if not record.peak_flops_per_s:
        raise _refuse(where, "peak_flops_per_s", "is empty; give at least one dtype's dense peak")
    for dtype, peak in record.peak_flops_per_s.items():
        if not peak > 0:
            raise _refuse(
                where,
                f"peak_flops_per_s.{dtype}",
                f"is {peak}, but must be positive; leave unpublished peaks out",
            )


def _validate_cluster(record: Cluster, where: str) -> None:
    """Refuse clusters without nodes and impossible power usage effectiveness."""
    _positive(record, ("num_nodes", "accelerators_per_node", "year"), where)
    _not_negative(
        record, ("node_memory_bytes", "scale_up_bytes_per_s", "injection_bytes_per_s"), where
    )
    if record.pue != 0 and not record.pue >= 1:
        raise _refuse(
            where,
            "pue",
            f"is {record.pue}, but facility power is at least IT power: 1 or more, or 0 for "
            f"unknown",
        )


def _validate_site(record: Site, where: str) -> None:
    """Refuse impossible power usage effectiveness and negative prices."""
    if not record.pue >= 1:
        raise _refuse(
            where, "pue", f"is {record.pue}, but facility power is at least IT power: 1 or more"
        )
    _not_negative(record, ("price_usd_per_kwh", "carbon_g_per_kwh"), where)


def validate(record: Architecture | Accelerator | Cluster | Site, *, where: str) -> None:
    """Refuse a record that contradicts itself or says not where it comes from.

    Args:
        record: any catalog record.
        where: file and record, for messages.

    Raises:
        CatalogError: a field has an impossible value.
    """
    if record.confidence not in CONFIDENCES:
        raise _refuse(
            where, "confidence", f"is {record.confidence!r}, not one of {', '.join(CONFIDENCES)}"
        )
    if not record.source:
        raise _refuse(where, "source", "is empty; say where the facts stand")
    if isinstance(record, Architecture):
        validate_architecture(record, where=where)
    elif isinstance(record, Accelerator):
        _validate_accelerator(record, where)
    elif isinstance(record, Cluster):
        _validate_cluster(record, where)
    else:
        _validate_site(record, where)
