"""Modules that share everything with another but the parts that are replaced."""

import copy

from torch import nn

__all__ = ["shallow"]


def shallow(module: nn.Module) -> nn.Module:
    """Copy a module so that replacing a part leaves the original alone.

    Args:
        module: any module.

    Returns:
        One of the same class, parameters and parts.
    """
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
