"""Every family's logits equal those that `transformers` computed, through a folder and back."""

import dataclasses
import warnings

import pytest
import torch
from tests.family_models import golden, write_folder

from steelyard.catalog import count_parameters
from steelyard.errors import SteelyardWarning
from steelyard.nn import checkpoint
from steelyard.nn.transformer import Transformer

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
    held = sum(tensor.numel() for tensor in model.state_dict().values())
    assert held == count_parameters(model.architecture).total
    checkpoint.save(model, tmp_path / "again")
    again = load(name, tmp_path / "again")
    assert again.architecture == dataclasses.replace(
        model.architecture, source=again.architecture.source
    )
    assert difference(again, entry) < 2e-5


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gemma", {"embedding_scale": 1.0}),
        ("gemma2", {"attention_scale": 0.0}),
        ("gemma2", {"attention_softcap": 0.0}),
        ("gemma2", {"logit_softcap": 0.0}),
        ("gemma2", {"full_attention_every": 0}),
        ("gemma2", {"sliding_window": 8}),
        ("gemma3_text", {"local_rope_theta": 0.0}),
        ("granite", {"residual_scale": 1.0}),
        ("granite", {"logit_divisor": 1.0}),
        ("mistral", {"sliding_window": 0}),
        ("phi3-short", {"rotary_dim": 0}),
        ("smollm3", {"no_rope_every": 0}),
    ],
)
def test_the_stored_logits_tell_when_a_trait_is_left_out(name, change, tmp_path):
    entry = GOLDEN["families"][name]
    model = load(name, write_folder(entry, tmp_path))
    scaling = None if "rotary_dim" in change else model.scaling
    other = Transformer(dataclasses.replace(model.architecture, **change), scaling)
    other.load_state_dict(model.state_dict())
    assert difference(other, entry) > 1e-3
