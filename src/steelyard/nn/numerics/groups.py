"""What codecs share: rows cut into groups, values refused."""

import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.errors import ConfigError

__all__ = ["join_groups", "num_groups", "refuse_unquantizable", "rounded_up", "split_groups"]


def num_groups(width: int, group: int) -> int:
    """Return how many groups a row has; the last may be shorter.

    Args:
        width: numbers of a row.
        group: numbers of a group, at least 1.

    Returns:
        The count.
    """
    return -(-width // group)


def split_groups(rows: Tensor, group: int) -> Tensor:
    """Cut rows into groups.

    Args:
        rows: [N, K].
        group: numbers of a group.

    Returns:
        [N, G, group]; the last group is filled up with zeros.
    """
    count = num_groups(rows.shape[1], group)
    return F.pad(rows, (0, count * group - rows.shape[1])).unflatten(1, (count, group))


def join_groups(groups: Tensor, width: int) -> Tensor:
    """Undo `split_groups`.

    Args:
        groups: [N, G, group].
        width: K.

    Returns:
        [N, K].
    """
    return groups.flatten(1)[:, :width]


def refuse_unquantizable(values: Tensor, what: str) -> Tensor:
    """Return values as float32 after checking that a codec can take them.

    Args:
        values: [N, K], floating point.
        what: what they are, for the error.

    Returns:
        float32 [N, K].

    Raises:
        ConfigError: there are other than two axes, the numbers are no floating point numbers, or
            one is infinite or NaN.
    """
    if values.ndim != 2 or not values.is_floating_point():
        raise ConfigError(
            f"{what} are {values.dtype} of shape {list(values.shape)}",
            hint="give floating point numbers of shape [rows, columns]",
        )
    wide = values.detach().float()
    if not torch.isfinite(wide).all():
        raise ConfigError(
            f"{what} hold infinite numbers or NaN", hint="quantize the model as it was trained"
        )
    return wide


def rounded_up(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the smallest numbers of a type that are not below some numbers of at least 0.

    Args:
        scales: float32.
        dtype: float32, float16 or bfloat16.

    Returns:
        Numbers of that type.

    Raises:
        ConfigError: a number is beyond the type's largest.
    """
    if float(scales.max() if scales.numel() else 0.0) > torch.finfo(dtype).max:
        raise ConfigError(
            f"weights are beyond what scales of {str(dtype).removeprefix('torch.')} can hold",
            hint="keep them in bf16, or divide them",
        )
    near = scales.to(dtype)
    # A scale rounded down would cut off the code of the largest weight.
    above = torch.nextafter(near, torch.full_like(near, float("inf")))
    return torch.where(near.float() < scales, above, near)
