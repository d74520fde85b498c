"""Every family's logits equal those that `transformers` computed, through a folder and back."""

import warnings

import pytest
import torch

from steelyard.catalog import count_parameters
from steelyard.errors import SteelyardWarning
from steelyard.nn import checkpoint

from tests.family_models import golden, write_folder

GOLDEN = golden()
FAMILIES = sorted(GOLDEN["families"])


@torch.no_grad()
def difference(model, entry):
    logits = model(torch.tensor([GOLDEN["prompt"]]))[0, GOLDEN["positions"]]
    return (logits - torch.tensor(entry["logits"])).abs().max().item()


def load(name, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        return checkpoint.load(folder, max_positions=96 if name.endswith("-long") else None)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers(name, tmp_path):
    entry = GOLDEN["families"][name]
    model = load(name, write_folder(entry, tmp_path))
    assert difference(model, entry) < 2e-5
    assert sum(p.numel() for p in model.parameters()) == count_parameters(model.architecture).total
    checkpoint.save(model, tmp_path / "again")
    again = load(name, tmp_path / "again")
    assert again.architecture == model.architecture.__class__(
        **{
            field: getattr(model.architecture, field)
            for field in model.architecture.__slots__
            if field != "source"
        },
        source=again.architecture.source,
    )
    assert difference(again, entry) < 2e-5
