"""Shapes and templates: the kernel against text, and the same result however lines are split."""

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.logs.counting import ShapeCounts
from steelyard.data.logs.mining import mine
from steelyard.data.logs.shapes import folded_text, line_hashes, shape_of
from steelyard.data.logs.templates import NO_TEMPLATE, TemplateSet, parse_contents
from steelyard.errors import DataError

pa = pytest.importorskip("pyarrow")
ALPHABET = "abfx019 -_.:=,/()[]{}\"'\té"
LINES = st.lists(st.text(ALPHABET, max_size=40), min_size=1, max_size=30)
WORDS = ["open", "close", "file", "disk", "user=bob", "10.0.0.1", "x7", "/a/b", "deadbeef12"]
SOME = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join), min_size=2, max_size=60
)


def slow_hash(line):
    code = 0xCBF29CE484222325
    for byte in folded_text(line).encode():
        code = (code ^ byte) * 0x100000001B3 % (1 << 64)
    return code


@given(LINES)
@settings(max_examples=60, deadline=None)
def test_kernel_hashes_folded_text(lines):
    found = line_hashes(pa.array(lines))
    assert found.tolist() == [slow_hash(line) for line in lines]


@pytest.mark.parametrize(
    "line",
    [
        "id 123e4567-e89b-12d3-a456-426614174000 done",
        "id 123e4567-e89b-12d3-a456-4266141740001 done",
        "0x1aF 0xg 0x deadbee deadbeef cafe12 cafe1",
    ],
)
def test_kernel_hashes_hexadecimal_words(line):
    assert line_hashes(pa.array([line])).tolist() == [slow_hash(line)]


@given(LINES)
@settings(max_examples=40, deadline=None)
def test_one_hash_has_one_shape(lines):
    for line in lines:
        assert shape_of(line) == shape_of(folded_text(line))


def test_shapes_show_variables_at_sight():
    shape = shape_of("read /a/b/c of 10.0.0.1:80 in 5ms, key=[] blk_-17 at org.x.Y")
    text = "".join(shape)
    assert text == "read <*> of <*> in <*>, key=[<*>] blk_<*> at <*>"
    assert shape_of("GET /v2/x?a=1&b=2 ok") == ("GET", " <*>", " ok")
    assert shape_of("to 1 2 3, 4") == ("to", " <*>")
    assert len(shape_of("a b " * 1000)) <= 513


@given(SOME, st.randoms(use_true_random=False), st.integers(1, 7))
@settings(max_examples=25, deadline=None)
def test_any_order_and_batch_gives_the_same_templates(lines, shuffler, size):
    once = TemplateSet(_counted([lines]))
    mixed = list(lines)
    shuffler.shuffle(mixed)
    parts = [mixed[first : first + size] for first in range(0, len(mixed), size)]
    other = TemplateSet(_counted(parts))
    assert other.texts == once.texts
    assert other.counts.tolist() == once.counts.tolist()


@given(SOME, SOME, st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_a_bounded_state_merges_to_that_of_all_lines(left, right, most):
    whole = _counted([left + right], most)
    merged, other = _counted([left], most), _counted([right], most)
    merged.merge(other)
    back = _counted([right], most)
    back.merge(_counted([left], most))
    expected = whole.sections()
    for state in (merged, back):
        for name, values in state.sections().items():
            assert values.tobytes() == expected[name].tobytes()
    assert len(whole.kept) <= most
    everything = _counted([left + right])
    assert all(everything.counts[shape] == count for shape, count in whole.counts.items())


def _counted(parts, most=50_000):
    state = ShapeCounts(most)
    for part in parts:
        state.update(pa.array(part))
    return state


def test_a_bounded_state_keeps_rare_templates_beside_endless_words():
    rng = random.Random(0)
    names = ["".join(rng.choices("ghijklmnop", k=9)) for _ in range(3000)]
    lines = [f"login of {name} from 10.0.0.{rng.randrange(255)} ok" for name in names]
    lines += ["disk full on sda1", "reboot now"]
    rng.shuffle(lines)
    state = _counted([lines], 100)
    assert len(state.kept) <= 100
    assert state.lines == 3002
    templates = TemplateSet(state)
    assert templates.texts == ("disk full on sda<*>", "login of <*> from <*> ok", "reboot now")
    numbers = templates.assign(pa.array(lines))
    assert np.bincount(numbers).tolist() == [1, 3000, 1]


def test_few_words_stay_and_many_become_a_variable():
    lines = [f"user {name} logged in" for name in ("bob", "eve", "ann", "joe")]
    lines += ["state is LEADING now", "state is LOOKING now", "a=1 b=true", "a=2 b=false"]
    parsed = parse_contents(lines)
    assert parsed.templates == (
        "a=<*> b=false",
        "a=<*> b=true",
        "state is LEADING now",
        "state is LOOKING now",
        "user <*> logged in",
    )


def test_every_shape_has_the_template_of_its_words():
    lines = [f"job {name} took {at} s" for at, name in enumerate("abcdefgh")]
    shapes = {shape_of(line) for line in lines}
    assert {"".join(text) for text in mine(shapes).values()} == {"job <*> took <*> s"}


def test_templates_are_kept_merged_and_grown(tmp_path):
    first = TemplateSet(_counted([["up 1 s", "down 2 s"]]))
    first.save(tmp_path / "a.templates")
    again = TemplateSet.load(tmp_path / "a.templates")
    assert again.texts == first.texts == ("down <*> s", "up <*> s")
    other = TemplateSet(_counted([["left 3 s", "up 9 s"]]))
    assert again.merged(other).texts == other.merged(again).texts
    assert again.merged(other).counts.tolist() == [1, 1, 2]
    (tmp_path / "b").write_bytes(b"no pack")
    with pytest.raises(DataError, match="no pack"):
        TemplateSet.load(tmp_path / "b")


def test_seeds_take_their_lines_first():
    lines = ["user bob in", "user eve in", "user ann out"]
    parsed = parse_contents(lines, seeds=["user <*> in"])
    assert parsed.templates == ("user <*> in", "user ann out")
    assert parsed.groups.tolist() == [0, 0, 1]
    with pytest.raises(DataError, match="empty"):
        parse_contents(lines, seeds=[" "])


def test_lines_never_met_take_a_template_that_fits_or_none():
    templates = TemplateSet(_counted([[f"user {name} in" for name in ("a", "b", "c", "d")]]))
    found = templates.assign(pa.array(["user zed in", "user zed out", None, ""]))
    assert found.tolist() == [0, NO_TEMPLATE, NO_TEMPLATE, NO_TEMPLATE]
    assert templates.parameters("user zed in", 0) == ("zed",)
    assert templates.parameters("user zed out", 0) is None
    assert re.fullmatch(r"user <\*> in", templates.texts[0])
