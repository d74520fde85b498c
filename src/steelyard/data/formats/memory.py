"""Memory that kernels use: arrays that are not filled, loads and stores at any place."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["copy32", "empty", "load8", "prefetch", "store8"]

_LEAST_POOLED = 1 << 20


def empty(count: int, dtype: Any) -> NDArray[Any]:
    """Return an array that is not filled, where it is large in memory of Arrow's pool.

    Args:
        count: count of values.
        dtype: dtype of them.

    Returns:
        The array, [count].
    """
    size = count * np.dtype(dtype).itemsize
    if size < _LEAST_POOLED:
        return np.empty(count, dtype)
    import pyarrow as pa

    # The pool keeps pages that were in use before; fresh ones took a third of a scan.
    return np.frombuffer(pa.allocate_buffer(size), dtype, count)


@intrinsic
def _load8(typingctx: Any, array: Any, place: Any) -> Any:
    """Load eight bytes of a uint8 array from any place."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        wide = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer())
        loaded = builder.load(wide)
        loaded.align = 1
        return loaded

    return types.uint64(array, types.int64), codegen


@intrinsic
def _store8(typingctx: Any, array: Any, place: Any, value: Any) -> Any:
    """Store eight bytes to a uint8 array at any place."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        wide = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer())
        stored = builder.store(args[2], wide)
        stored.align = 1
        return cgutils.get_null_value(ir.IntType(64))

    return types.int64(array, types.int64, types.uint64), codegen


@intrinsic
def _copy32(typingctx: Any, found: Any, to: Any, array: Any, place: Any) -> Any:
    """Copy 32 bytes from any place of a uint8 array to any place of another."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.VectorType(ir.IntType(64), 4).as_pointer()
        ends = []
        for which in (2, 0):
            data = context.make_array(signature.args[which])(context, builder, args[which]).data
            ends.append(builder.bitcast(builder.gep(data, [args[which + 1]]), wide))
        loaded = builder.load(ends[0])
        loaded.align = 1
        builder.store(loaded, ends[1]).align = 1
        return cgutils.get_null_value(ir.IntType(64))

    return types.int64(found, types.int64, array, types.int64), codegen


@intrinsic
def _prefetch(typingctx: Any, array: Any, place: Any) -> Any:
    """Have the line of a place of a uint8 array brought into the cache."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        numbers = ir.IntType(32)
        kinds = [ir.IntType(8).as_pointer(), numbers, numbers, numbers]
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
        )
        # To read, to keep in all caches, data.
        builder.call(function, [builder.gep(data, [args[1]]), *map(numbers, (0, 3, 1))])
        return cgutils.get_null_value(ir.IntType(64))

    return types.int64(array, types.int64), codegen


# A type checker takes an intrinsic for a function with one more argument.
load8: Any = _load8
store8: Any = _store8
copy32: Any = _copy32
prefetch: Any = _prefetch
