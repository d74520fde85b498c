"""Packed rows: each example computes what it computes alone."""

import dataclasses

import pytest
import torch
from tests.nn.conftest import GPT2, LLAMA
from tests.nn.test_encoder_decoder import PAIRS

from steelyard.errors import ConfigError
from steelyard.nn import encoder_decoder, transformer
from steelyard.nn.mixers.sequences import same_segment, segment_positions

FORMS = {
    "rope": LLAMA,
    "learned": GPT2,
    "alibi": dataclasses.replace(LLAMA, position="alibi"),
    "encoder": dataclasses.replace(LLAMA, kind="encoder"),
}
LENGTHS = (5, 3, 6)


def row(parts, length):
    """Lay examples out in a row with their segments and padding behind."""
    tokens, segments = torch.zeros(1, length, dtype=torch.long), torch.zeros(1, length).int()
    place = 0
    for number, part in enumerate(parts, 1):
        tokens[0, place : place + len(part)] = part
        segments[0, place : place + len(part)] = number
        place += len(part)
    return tokens, segments


def examples(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 97, (length,), generator=generator) for length in lengths]


def test_positions_begin_anew_in_each_segment():
    segments = torch.tensor([[1, 1, 1, 2, 2, 0, 0], [1, 2, 3, 3, 3, 3, 4]])
    wanted = [[0, 1, 2, 0, 1, 0, 1], [0, 0, 0, 1, 2, 3, 0]]
    assert segment_positions(segments).tolist() == wanted


def test_a_query_without_a_key_of_its_segment_sees_all():
    seen = same_segment(torch.tensor([[1, 2, 0]]), torch.tensor([[1, 1]]))
    assert seen.tolist() == [[[[True, True]] * 3]]


@torch.no_grad()
@pytest.mark.parametrize("arch", FORMS.values(), ids=list(FORMS))
def test_an_example_in_a_packed_row_is_as_alone(arch):
    model, parts = transformer.build(arch, seed=3).eval(), examples(LENGTHS, 0)
    tokens, segments = row(parts, 16)
    packed, place = model(tokens, segments=segments), 0
    assert packed.isfinite().all()
    for part in parts:
        alone = model(part[None])
        torch.testing.assert_close(packed[:, place : place + len(part)], alone)
        place += len(part)


@torch.no_grad()
@pytest.mark.parametrize("pair", PAIRS.values(), ids=list(PAIRS))
def test_a_pair_in_a_packed_row_is_as_alone(pair):
    model = encoder_decoder.build(pair, seed=3).eval()
    sources, targets = examples(LENGTHS, 1), examples((2, 7, 4), 2)
    (source, of_source), (target, of_target) = row(sources, 16), row(targets, 15)
    packed = model(source, target, source_segments=of_source, target_segments=of_target)
    assert packed.isfinite().all()
    place = 0
    for one, other in zip(sources, targets, strict=True):
        alone = model(one[None], other[None])
        torch.testing.assert_close(packed[:, place : place + len(other)], alone)
        place += len(other)


def test_what_cannot_attend_in_segments_is_refused():
    arch = dataclasses.replace(LLAMA, sliding_window=4)
    model = transformer.build(arch)
    with pytest.raises(ConfigError, match="cannot attend in segments"):
        model(torch.zeros(1, 4, dtype=torch.long), segments=torch.ones(1, 4).int())
