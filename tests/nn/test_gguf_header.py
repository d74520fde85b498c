"""Hostile headers: every length, count, type and place of a GGUF file is checked before use."""

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from steelyard.errors import DataError, SteelyardError
from steelyard.nn import checkpoint
from steelyard.nn.gguf.header import is_gguf, read_header
from steelyard.nn.gguf.vocabulary import read_vocabulary

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
HUGE = (2**64 - 1, 2**40, 2**31)


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return U64.pack(len(raw)) + raw


def field(key, kind, value):
    return text(key) + U32.pack(kind) + value


def texts(values):
    return U32.pack(8) + U64.pack(len(values)) + b"".join(map(text, values))


def record(name, axes, kind, offset):
    sizes = b"".join(map(U64.pack, axes))
    return text(name) + U32.pack(len(axes)) + sizes + U32.pack(kind) + U64.pack(offset)


FIELDS = [
    field("general.architecture", 8, text("llama")),
    field("general.alignment", 4, U32.pack(32)),
    field("llama.block_count", 4, U32.pack(1)),
    field("tokenizer.ggml.model", 8, text("gpt2")),
    field("tokenizer.ggml.tokens", 9, texts(["a", "b", "ab"])),
    field("tokenizer.ggml.merges", 9, texts(["a b"])),
    field("tokenizer.ggml.token_type", 9, U32.pack(5) + U64.pack(3) + struct.pack("<3i", 1, 1, 1)),
    field("llama.rope.freq_base", 6, struct.pack("<f", 10000.0)),
    field("a.flag", 7, b"\1"),
]
TENSORS = [
    record("token_embd.weight", [32, 3], 0, 0),
    record("a.weight", [32, 2], 8, 384),
    record("b.weight", [7], 1, 480),
]
DATA_BYTES = 480 + 14


def build_file(
    *,
    magic=b"GGUF",
    version=3,
    fields=FIELDS,
    tensors=TENSORS,
    counts=None,
    alignment=32,
    data_bytes=DATA_BYTES,
):
    counts = counts or (len(tensors), len(fields))
    head = magic + U32.pack(version) + U64.pack(counts[0]) + U64.pack(counts[1])
    head += b"".join(fields) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + bytes(data_bytes)


GOOD = build_file()
HEADER_BYTES = len(GOOD) - DATA_BYTES


def write(folder, raw):
    path = folder / "m.gguf"
    path.write_bytes(raw)
    return path


def test_a_good_header_is_read(tmp_path):
    path = write(tmp_path, GOOD)
    assert is_gguf(path)
    header = read_header(path)
    assert header.fields["tokenizer.ggml.tokens"] == ["a", "b", "ab"]
    assert header.fields["tokenizer.ggml.token_type"].tolist() == [1, 1, 1]
    assert header.fields["llama.rope.freq_base"] == 10000.0
    assert header.fields["a.flag"] is True
    assert header.tensors["a.weight"].shape == (2, 32)
    assert header.tensors["b.weight"].stop == len(GOOD)
    assert header.tensors["b.weight"].start - header.tensors["a.weight"].start == 96


def test_a_file_cut_anywhere_is_refused(tmp_path):
    for size in [*range(HEADER_BYTES + 1), HEADER_BYTES + 100, len(GOOD) - 1]:
        with pytest.raises(DataError):
            read_header(write(tmp_path, GOOD[:size]))


@pytest.mark.parametrize("value", HUGE)
def test_no_number_makes_more_memory_than_the_file(value, tmp_path):
    path = tmp_path / "m.gguf"
    tracemalloc.start()
    try:
        for at in range(4, HEADER_BYTES - 7):
            path.write_bytes(GOOD[:at] + U64.pack(value) + GOOD[at + 8 :])
            for reader in (read_header, read_vocabulary, checkpoint.load):
                with pytest.raises(SteelyardError) if reader is checkpoint.load else _allowed():
                    reader(path)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


class _allowed:
    """Errors of the package pass, and nothing else does."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is not None and issubclass(kind, SteelyardError)


@given(
    changes=st.lists(st.tuples(st.integers(4, HEADER_BYTES - 1), st.integers(0, 255)), max_size=8)
)
@example(changes=[])
@settings(max_examples=300, deadline=None)
def test_any_damage_is_refused_or_read_within_the_file(changes, tmp_path_factory):
    raw = bytearray(GOOD)
    for at, value in changes:
        raw[at] = value
    path = write(tmp_path_factory.getbasetemp(), raw)
    with _allowed():
        header = read_header(path)
        places = sorted((tensor.start, tensor.stop) for tensor in header.tensors.values())
        assert all(0 < start <= stop <= len(raw) for start, stop in places)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(places))
    with _allowed():
        read_vocabulary(path)


def tensor(*arguments, others=TENSORS[1:]):
    return build_file(tensors=[record(*arguments), *others])


CASES = {
    "another magic": (build_file(magic=b"GGML"), "not a GGUF file"),
    "version 1": (build_file(version=1), "version 1; versions that are read: 2, 3"),
    "version 4": (build_file(version=4), "version 4"),
    "big-endian": (build_file(version=3 << 24), "big-endian"),
    "tensors": (build_file(counts=(2**63, 9)), "9223372036854775808 tensors, where at most"),
    "fields": (build_file(counts=(3, 2**32)), "4294967296 fields, where at most"),
    "more fields": (build_file(counts=(3, 10)), "unknown type|needs|at most"),
    "long key": (build_file(fields=[field("k" * 65_536, 7, b"\1")]), "key of 65536 bytes"),
    "long name": (tensor("n" * 65, [32, 3], 0, 0), "name of 65 bytes.*64"),
    "text": (
        build_file(fields=[text("k") + U32.pack(8) + U64.pack(2**62) + b"x"]),
        "a text of 4611686018427387904 bytes",
    ),
    "UTF-8": (build_file(fields=[field("k", 8, text(b"\xff\xfe"))]), "is not UTF-8"),
    "key twice": (build_file(fields=[*FIELDS, FIELDS[2]]), "key 'llama.block_count' comes twice"),
    "name twice": (build_file(tensors=[TENSORS[0], TENSORS[0]]), "'token_embd.weight' comes twice"),
    "field type": (build_file(fields=[field("k", 13, b"\1")]), "unknown type 13"),
    "item type": (
        build_file(fields=[field("k", 9, U32.pack(9) + U64.pack(1) + texts(["a"]))]),
        "unknown type 9 of an array's items",
    ),
    "numbers": (
        build_file(fields=[field("k", 9, U32.pack(0) + U64.pack(2**60))]),
        "1152921504606846976 numbers",
    ),
    "texts": (build_file(fields=[field("k", 9, U32.pack(8) + U64.pack(2**60))]), "texts, where"),
    "no axes": (tensor("a", [], 0, 0), "0 axes"),
    "five axes": (tensor("a", [1] * 5, 0, 0), "5 axes"),
    "empty axis": (tensor("a", [32, 0], 0, 0), "an axis of 0"),
    "overflow": (tensor("a", [2**32, 2**32], 0, 0), "truncated"),
    "part of a block": (tensor("a", [33, 3], 8, 0), "not a multiple of 32"),
    "unread type": (tensor("a", [32, 3], 16, 0), r"type 16 \(IQ2_XXS\) is not read.*Q4_K"),
    "unknown type": (tensor("a", [32, 3], 4_000_000_000, 0), "type 4000000000 is not read"),
    "outside": (tensor("a", [32, 3], 0, 2**63), "has the offset 9223372036854775808"),
    "overlap": (
        build_file(tensors=[TENSORS[0], record("c", [32, 2], 8, 352)]),
        "offset 352, where 384 follows",
    ),
    "unaligned": (tensor("a", [32, 3], 0, 1), "offset 1, where 0 follows"),
    "gap": (build_file(tensors=TENSORS[:1] + TENSORS[2:]), "offset 480, where 384 follows"),
}
for _value in (0, 1, 3, 24, 2**31):
    _field = field("general.alignment", 4, U32.pack(_value))
    CASES[f"alignment {_value}"] = (build_file(fields=[_field]), f"alignment is {_value}, but")


@pytest.mark.parametrize(("raw", "words"), CASES.values(), ids=CASES)
def test_a_hostile_header_is_refused_in_words(raw, words, tmp_path):
    with pytest.raises(DataError, match=words):
        read_header(write(tmp_path, raw))


def test_an_alignment_of_its_own_is_followed(tmp_path):
    aligned = [field("general.alignment", 4, U32.pack(512))]
    records = [record("a", [7], 0, 0), record("b", [1], 0, 512)]
    raw = build_file(fields=aligned, tensors=records, alignment=512, data_bytes=516)
    header = read_header(write(tmp_path, raw))
    assert header.tensors["a"].start % 512 == 0
    assert header.tensors["b"].stop == len(raw)


def test_what_is_no_plain_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(DataError, match="not a regular file"):
        read_header(tmp_path)
    with pytest.raises(DataError, match="not a GGUF file"):
        read_header(write(tmp_path, b""))
    assert not is_gguf(tmp_path)
