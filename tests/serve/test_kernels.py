import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.catalog.architecture import Architecture
from steelyard.nn.attention import attend_tail
from steelyard.serve.running.attention import decode_gathered
from steelyard.serve.running.kernels import paged_decode, split_pieces
from steelyard.serve.running.native.library import (
    Team,
    capped_attention,
    compiled_library,
)
from steelyard.serve.running.pool import KVPool

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


class Case:
    """Queries and a shuffled pool, with the gathered batch as the slow obvious version."""

    def __init__(
        self,
        seed,
        contexts,
        *,
        lengths=None,
        heads=6,
        kv_heads=2,
        width=16,
        block_size=8,
        dtype=torch.float32,
    ):
        generator = torch.Generator().manual_seed(seed)
        # Of chunks of prompts; None: every sequence decodes.
        self.starts = None if lengths is None else np.cumsum([0, *lengths])
        self.contexts = np.array(contexts, dtype=np.int64)
        columns = -(-int(self.contexts.max()) // block_size)
        blocks = len(contexts) * columns + 3
        rows = len(contexts) if lengths is None else sum(lengths)
        self.query = torch.randn(rows, heads, width, generator=generator)
        shape = Architecture(
            name="layer",
            num_layers=1,
            hidden_size=8,
            intermediate_size=8,
            vocab_size=2,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=width,
        )
        self.pool = KVPool(shape, blocks, block_size, dtype, torch.device("cpu"))
        tokens = torch.randn(2, blocks * block_size, kv_heads, width, generator=generator)
        slots = torch.arange(blocks * block_size)
        self.pool.write(0, slots // block_size, slots % block_size, *tokens)
        self.keys, self.values = self.pool.kv[0]
        self.tables = (
            np.random.default_rng(seed)
            .permutation(blocks)[: len(contexts) * columns]
            .reshape(len(contexts), columns)
        )

    def bits(self):
        if self.pool.has_scales:
            return self.keys.numpy(), self.values.numpy()
        return self.pool.arrays(0)

    def arrays(self):
        return self.query.numpy(), *self.bits(), self.tables, self.contexts

    def expected(self, **limits):
        tables = torch.from_numpy(self.tables)
        keys, values = self.pool.gather(0, tables, torch.float32)
        contexts = torch.from_numpy(self.contexts)
        if self.starts is None:
            return decode_gathered(self.query, keys, values, contexts, **limits).numpy()
        found = [
            attend_tail(
                self.query[first:end].transpose(0, 1), k[:, :context], v[:, :context], **limits
            )
            for first, end, context, k, v in zip(
                self.starts, self.starts[1:], contexts, keys, values, strict=False
            )
        ]
        return torch.cat(found, dim=1).transpose(0, 1).numpy()

    def assert_equals(self, decode, tolerance=3e-6, **limits):
        out = np.full(self.query.shape, np.nan, dtype=np.float32)
        chunks = {} if self.starts is None else {"starts": self.starts}
        decode(*self.arrays(), out, **chunks, **limits)
        np.testing.assert_allclose(out, self.expected(**limits), rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_numba_kernel_equals_the_gathered_batch(threads, dtype):
    with ThreadPoolExecutor(2) as helpers:

        def decode(*arrays):
            paged_decode(*arrays, helpers=helpers, threads=threads)

        Case(0, [1, 8, 9, 1501, 1600], dtype=dtype).assert_equals(decode)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**16),
    st.lists(st.integers(1, 70), min_size=1, max_size=5),
    st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    st.sampled_from([8, 24]),
    st.sampled_from([4, 16]),
)
def test_the_numba_kernel_takes_any_shape(seed, contexts, heads, width, block_size):
    Case(
        seed, contexts, heads=heads[0], kv_heads=heads[1], width=width, block_size=block_size
    ).assert_equals(paged_decode)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**16),
    st.lists(st.integers(1, 70), min_size=1, max_size=5),
    st.sampled_from([4, 16]),
    st.sampled_from([0, 1, 5, 16, 33, 100]),
    st.sampled_from([0.0, 1.5]),
)
def test_the_numba_kernel_takes_windows_and_caps(seed, contexts, block_size, window, softcap):
    case = Case(seed, contexts, block_size=block_size)
    case.assert_equals(paged_decode, window=window, softcap=softcap)


def test_windows_and_caps_by_hand():
    case = Case(3, [37, 2600], heads=2, kv_heads=1, block_size=8)
    out = np.empty(case.query.shape, dtype=np.float32)
    arrays = case.query.numpy(), *case.bits(), case.tables, case.contexts, out
    paged_decode(*arrays, window=1500, softcap=0.7)
    for row, context in enumerate(case.contexts.tolist()):
        keys, values = (
            item[case.tables[row], 0].flatten(0, 1)[max(0, context - 1500) : context].double()
            for item in (case.keys, case.values)
        )
        scores = keys @ case.query[row].double().T / 4.0
        expected = ((scores / 0.7).tanh() * 0.7).softmax(0).T @ values
        np.testing.assert_allclose(out[row], expected.numpy(), rtol=1e-4, atol=3e-6)


def attend_natively(
    query,
    keys,
    values,
    tables,
    contexts,
    out,
    *,
    starts=None,
    window=0,
    softcap=0.0,
    threads=2,
    library=None,
):
    library = library or compiled_library()
    heads, width = query.shape[1:]
    places = [item.ctypes.data for item in (query, keys, values)]
    sizes = len(contexts), heads, keys.shape[1], width, keys.shape[2], tables.shape[1]
    contexts, tables = contexts.astype(np.int64), np.ascontiguousarray(tables, dtype=np.int64)
    starts = None if starts is None else np.ascontiguousarray(starts, dtype=np.int64)
    team = Team(library, threads)
    library.steelyard_attend(
        team.address,
        *places,
        {4: 0, 2: 1, 1: 2}[keys.itemsize],
        tables.ctypes.data,
        None if starts is None else starts.ctypes.data,
        contexts.ctypes.data,
        *sizes,
        window,
        softcap,
        out.ctypes.data,
    )


def has_pairs():
    """Whether this processor multiplies pairs of bfloat16."""
    return compiled_library().steelyard_level() == 3


def error_of(dtype, *, level=3):
    """Largest error: queries and shares are rounded where narrow types are multiplied."""
    if level == 3 and dtype == torch.bfloat16:
        return 2e-2
    return 5e-2 if level >= 2 and dtype == torch.int8 else 3e-6


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_the_native_kernel_equals_the_gathered_batch(dtype):
    tolerance = error_of(dtype)
    Case(0, [1, 8, 9, 2501, 2600], dtype=dtype).assert_equals(attend_natively, tolerance=tolerance)


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**16),
    st.lists(st.integers(1, 70), min_size=1, max_size=5),
    st.sampled_from([(4, 4), (4, 2), (6, 1), (7, 1), (11, 1), (34, 2)]),
    st.sampled_from([8, 24, 32, 128]),
    st.sampled_from([1, 4, 16, 64]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int8]),
    st.sampled_from([0, 1, 5, 33]),
    st.sampled_from([0.0, 1.5]),
)
def test_the_native_kernel_takes_any_shape(
    seed, contexts, heads, width, block_size, dtype, window, softcap
):
    Case(
        seed,
        contexts,
        heads=heads[0],
        kv_heads=heads[1],
        width=width,
        block_size=block_size,
        dtype=dtype,
    ).assert_equals(
        attend_natively,
        tolerance=error_of(dtype),
        window=window,
        softcap=softcap,
    )


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**16),
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 150)), min_size=1, max_size=3),
    st.sampled_from([(4, 4), (4, 2), (7, 1), (34, 2)]),
    st.sampled_from([8, 24, 64, 80]),
    st.sampled_from([1, 4, 16, 64]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int8]),
    st.sampled_from([0, 1, 33]),
    st.sampled_from([0.0, 1.5]),
)
def test_prompts_of_any_shape_equal_the_gathered_batch(
    seed, chunks, heads, width, block_size, dtype, window, softcap
):
    lengths, before = (np.array(part) for part in zip(*chunks, strict=True))
    shape = {"lengths": lengths, "width": width, "block_size": block_size, "dtype": dtype}
    case = Case(seed, lengths + before, heads=heads[0], kv_heads=heads[1], **shape)
    tolerance = error_of(dtype)
    case.assert_equals(attend_natively, tolerance=tolerance, window=window, softcap=softcap)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 1, 0])
def test_attention_of_narrower_processors_equals_the_gathered_batch(level):
    def attend(*arrays, **limits):
        attend_natively(*arrays, library=capped_attention(level), **limits)

    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        for width in (24, 64, 128):
            for lengths in (None, [1, 30, 140]):
                shape = {"heads": 10, "width": width, "block_size": 16, "lengths": lengths}
                case = Case(width, [1, 40, 300], dtype=dtype, **shape)
                tolerance = error_of(dtype, level=level)
                case.assert_equals(attend, tolerance=tolerance)
                case.assert_equals(attend, tolerance=tolerance, window=33, softcap=1.5)


def in_bytes(x):
    """Round to 127 steps of each row's largest."""
    step = x.abs().amax(-1, keepdim=True).float() / 127
    return (x / step.clamp(min=1e-30)).round() * step.double()


def rounded_attention(case):
    """Attention in double precision, but for what narrow products round: [T, H, D]."""
    coded = case.pool.has_scales
    keys, values = case.pool.gather(0, torch.from_numpy(case.tables), torch.float64)
    scales = case.pool._coded[1][0, 1][:, :, :, None] if coded else None
    rows = []
    for row, context in enumerate(case.contexts.tolist()):
        length = 1 if case.starts is None else int(np.diff(case.starts)[row])
        for back in range(length - 1, -1, -1):
            k, v = (part[row, :, : context - back] for part in (keys, values))
            query = case.query[len(rows)] * np.float32(case.query.shape[2] ** -0.5 * np.log2(np.e))
            query = (in_bytes(query) if coded else query.bfloat16()).double()
            scores = query.unflatten(0, (k.shape[0], -1)) @ k.transpose(-2, -1)
            exact = torch.exp2(scores - scores.amax(-1, keepdim=True).ceil())
            shares = exact if coded else exact.bfloat16().double()
            mass = shares.sum(-1, keepdim=True)
            if coded:
                by = scales[case.tables[row]].transpose(0, 1).flatten(1, 2)[:, None, :, 0].double()
                by = by[..., : k.shape[1]]
                blocks = (exact * by).split(64, dim=-1)
                shares = torch.cat([in_bytes(block) for block in blocks], dim=-1) / by
            rows.append((shares @ v / mass).flatten(0, 1))
    return torch.stack(rows).numpy()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_queries_and_shares_are_rounded_and_nothing_else(dtype):
    if not has_pairs():
        pytest.skip("no products of bfloat16")
    shape = {"width": 64, "block_size": 16, "dtype": dtype}
    case = Case(3, [70, 200, 65], lengths=[70, 30, 1], **shape)
    found = np.empty(case.query.shape, dtype=np.float32)
    attend_natively(*case.arrays(), found, starts=case.starts)
    apart = np.abs(found - rounded_attention(case))
    # A share that lies in the middle of two numbers may go to either.
    assert np.quantile(apart, 0.95) < 1e-6 and apart.max() < 1e-2


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("window", [0, 40])
def test_a_prompts_rows_are_the_same_bits_however_it_is_cut(dtype, window):
    case = Case(4, [830], lengths=[830], heads=10, width=24, block_size=16, dtype=dtype)
    query, *numbers, tables, contexts = case.arrays()
    whole, cut = np.empty((2, *query.shape), dtype=np.float32)
    attend_natively(query, *numbers, tables, contexts, whole, starts=case.starts, window=window)
    for first, end in itertools.pairwise([0, 7, 64, 100, 300, 829, 830]):
        part, found = query[first:end].copy(), np.empty_like(query[first:end])
        starts, ends = np.array([0, end - first]), np.array([end])
        attend_natively(part, *numbers, tables, ends, found, starts=starts, window=window)
        cut[first:end] = found
    np.testing.assert_array_equal(cut, whole)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (8, 2), (14, 1)])
@pytest.mark.parametrize(("width", "window"), [(24, 0), (64, 0), (80, 300)])
def test_decoding_gives_the_bits_of_a_prompts_rows(dtype, heads, kv_heads, width, window):
    """A request that goes on after it was computed again as a prompt goes on alike."""
    shape = {"heads": heads, "kv_heads": kv_heads, "width": width, "block_size": 16, "dtype": dtype}
    case = Case(5, [701], lengths=[701], **shape)
    query, *numbers, tables, contexts = case.arrays()
    whole = np.empty_like(query)
    attend_natively(query, *numbers, tables, contexts, whole, starts=case.starts, window=window)
    rows = np.array([0, 1, 17, 63, 64, 200, 255, 256, 257, 511, 512, 699, 700])
    alone = np.empty_like(query[rows])
    tables = np.repeat(tables, len(rows), axis=0)
    attend_natively(query[rows], *numbers, tables, rows + 1, alone, window=window)
    if compiled_library().steelyard_level() >= (3 if dtype == torch.bfloat16 else 2):
        np.testing.assert_array_equal(alone, whole[rows])
    np.testing.assert_allclose(alone, whole[rows], atol=error_of(dtype))


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_rows_attention_is_the_same_bits_in_any_batch(dtype):
    case = Case(2, [37, 600, 1, 300], heads=8, width=64, block_size=16, dtype=dtype)
    whole, alone = np.empty((2, *case.query.shape), dtype=np.float32)
    query, bits = case.query.numpy(), case.bits()
    attend_natively(query, *bits, case.tables, case.contexts, whole)
    for row in range(4):
        one = slice(row, row + 1)
        found = np.empty((1, *query.shape[1:]), dtype=np.float32)
        arrays = query[one].copy(), *bits, case.tables[one], case.contexts[one], found
        attend_natively(*arrays, threads=1)
        alone[row] = found[0]
    np.testing.assert_array_equal(alone, whole)


@needs_compiler
def test_native_equals_numba():
    case = Case(1, [5, 1030, 2049, 64], heads=12, kv_heads=4, width=64, block_size=16)
    found = []
    for decode in (attend_natively, paged_decode):
        found.append(np.empty(case.query.shape, dtype=np.float32))
        decode(case.query.numpy(), *case.bits(), case.tables, case.contexts, found[-1])
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 20))
def test_pieces_cover_every_context_once(contexts, split):
    pieces, starts = split_pieces(np.array(contexts), split)
    tokens = [(row, token) for row, first, end in pieces.tolist() for token in range(first, end)]
    assert tokens == [(row, token) for row, size in enumerate(contexts) for token in range(size)]
    assert (pieces[:, 2] - pieces[:, 1]).max() <= split
    assert (np.diff(starts) == -(-np.array(contexts) // split)).all()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 20), st.integers(1, 60))
def test_pieces_cover_every_window_once(contexts, split, window):
    pieces, starts = split_pieces(np.array(contexts), split, window=window)
    tokens = [(row, token) for row, first, end in pieces.tolist() for token in range(first, end)]
    assert tokens == [
        (row, token)
        for row, size in enumerate(contexts)
        for token in range(max(0, size - window), size)
    ]
    assert starts[-1] == len(pieces) and (pieces[:, 2] - pieces[:, 1]).max() <= split
