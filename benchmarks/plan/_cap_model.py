"""The model of the trade-off, trained here to recall records and to follow aliases."""

from dataclasses import dataclass, replace

import numpy as np
from benchmarks.serve._recall_model import Recipe, architecture, trained
from benchmarks.serve._recall_text import real_text

from steelyard.nn.transformer import Transformer, build
from steelyard.plan.tradeoff.tasks import Template

__all__ = ["TEMPLATE", "Subject", "subject"]

_FULL = Recipe(
    num_layers=2,
    phases=((160, 16, 256, 8, 32), (120, 8, 512, 8, 64)),
    max_positions=1024,
    theta=1e4,
    aliases=0.25,
)

TEMPLATE = Template(
    define="!{key}{value}\n",
    ask="?{key}",
    alias="!{key}={other}\n",
    hop="={other}",
    keys="".join(map(chr, range(128, 256))),
    key_length=1,
    values="ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    value_length=5,
)
"""How the records that the model was trained on are written; a character is a byte."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A trained model and text it has not seen.

    Attributes:
        model: its `max_positions` are those it was trained for.
        text: int64 [N] bytes.
        begins: bool [256] bytes with which a word begins.
    """

    model: Transformer
    text: np.ndarray
    begins: np.ndarray

    @staticmethod
    def encode(text: str) -> list[int]:
        """Turn a string into bytes."""
        return list(text.encode("latin-1"))


def subject(quick: bool) -> Subject:
    """Return the trained model, from the cache or by training it; a killed training goes on.

    A quick run has the same shape with weights as they are drawn.
    """
    # It is trained on positions below half of what it is built for.
    arch = replace(architecture(_FULL), max_positions=_FULL.max_positions // 2)
    model = build(arch, seed=0)
    if not quick:
        model.load_state_dict(trained(_FULL).state_dict())
    text = real_text()[0]
    begins = np.zeros(256, dtype=bool)
    begins[[ord(" "), ord("\n")]] = True
    unseen = np.frombuffer(text[int(len(text) * 0.95) :], dtype=np.uint8).astype(np.int64)
    return Subject(model=model.eval(), text=unseen, begins=begins)
