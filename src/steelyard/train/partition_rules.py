"""Rules that say along which of its named axes a tensor is cut, and over which axis of the mesh.

Source: Roberts et al. 2022 (arXiv 2203.17189), section 2.2: named axes and the four presets of
    one- or two-dimensional partitioning of parameters and activations. Where two-dimensional
    activations are cut along the width there, they are cut along the length here, as in Korthikanti
    et al. 2022 (arXiv 2205.05198), section 4.2: norms then need no messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["AXES", "ParameterAxes", "Preset", "Rules", "mesh_axes", "preset_rules", "violations"]

Preset = Literal["P1A1", "P1A2", "P2A1", "P2A2"]
Rules = Sequence[tuple[str, str]]
"""Pairs of a tensor's axis and the mesh axis, "data" or "model", that it is cut over; "" for none.
The first that applies counts, and a tensor is cut over each mesh axis once."""

AXES: dict[str, tuple[str, ...]] = {
    "batch": ("data",),
    "length": ("model",),
    "vocab": ("model", "data"),
    "heads": ("model", "data"),
    "mlp": ("model", "data"),
    "embed": ("data",),
    "head": (),
    "positions": (),
}
"""Axes by name, with the mesh axes they may be cut over."""


@dataclass(frozen=True, slots=True)
class ParameterAxes:
    """The axes of a parameter.

    Attributes:
        names: name of each dimension.
        counts: parts of each dimension that cannot be cut further, such as heads; several where
            matrices lie in one after another, each of which is cut.
    """

    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


def preset_rules(preset: Preset) -> tuple[tuple[str, str], ...]:
    """Return the rules of a preset.

    Args:
        preset: P1 cuts parameters over "model" alone (tensor parallel), P2 over "data" too (fully
            sharded); A1 cuts activations of the residual stream over "data" alone, A2 along their
            length over "model" too.

    Returns:
        Pairs of axis and mesh axis.
    """
    rules = [("batch", "data"), ("vocab", "model"), ("heads", "model"), ("mlp", "model")]
    if preset.startswith("P2"):
        rules.append(("embed", "data"))
    if preset.endswith("A2"):
        rules.append(("length", "model"))
    return tuple(rules)


def mesh_axes(names: Sequence[str], rules: Rules) -> tuple[str, ...]:
    """Return the mesh axis that each axis of a tensor is cut over, "" for none.

    Args:
        names: axes of the tensor.
        rules: pairs of axis and mesh axis.

    Returns:
        Mesh axes, each at most once.
    """
    found = dict.fromkeys(range(len(names)), "")
    decided: set[int] = set()
    for axis, mesh_axis in rules:
        for place, name in enumerate(names):
            # The first rule that applies counts, and no mesh axis cuts two dimensions of a tensor.
            if name != axis or place in decided or (mesh_axis and mesh_axis in found.values()):
                continue
            found[place] = mesh_axis
            decided.add(place)
    return tuple(found.values())


def violations(
    parameters: Mapping[str, ParameterAxes],
    activations: Mapping[str, int],
    rules: Rules,
    mesh: Mapping[str, int],
) -> list[str]:
    """Return what keeps rules from being met.

    Args:
        parameters: axes of each parameter.
        activations: sizes of their axes: micro-batches of a step, tokens of a sequence.
        rules: pairs of axis and mesh axis.
        mesh: processes along each of its axes.

    Returns:
        One sentence each; none where all can be met.
    """
    wrong, sound = [], []
    for axis, mesh_axis in rules:
        if axis not in AXES:
            wrong.append(f"there is no axis {axis!r}; there are {', '.join(AXES)}")
        elif mesh_axis and mesh_axis not in mesh:
            wrong.append(f"the mesh has no axis {mesh_axis!r}; it has {', '.join(mesh)}")
        elif mesh_axis and mesh_axis not in AXES[axis]:
            allowed = " or ".join(AXES[axis]) or "no axis"
            wrong.append(f"{axis} cannot be cut over {mesh_axis}, but over {allowed}")
        else:
            sound.append((axis, mesh_axis))
    # Sizes are held against the rules that make sense: others are told of once, not per parameter.
    sized = [(name, item.names, item.counts) for name, item in parameters.items()]
    sized.append(
        (
            "the activations (micro-batches, tokens)",
            tuple(activations),
            tuple((size,) for size in activations.values()),
        )
    )
    for name, names, counts in sized:
        for axis, parts, mesh_axis in zip(names, counts, mesh_axes(names, sound), strict=True):
            size = mesh.get(mesh_axis, 1)
            odd = sorted({part for part in parts if part % size})
            if odd:
                numbers = " and ".join(map(str, odd))
                wrong.append(
                    f"{axis} of {name} is {numbers}, not a multiple of {mesh_axis} = {size}"
                )
    return list(dict.fromkeys(wrong))
