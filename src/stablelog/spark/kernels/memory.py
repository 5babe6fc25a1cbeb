"""Loads, stores and copies at memory addresses, for kernels: functions that Numba compiles.

Kernels use addresses, not arrays: the bytes of a batch are in a mapped file or a receive buffer, the columns are in
memory of Arrow, and one call works on many batches and columns. The functions of this module check nothing. Before a
load, a kernel checks the address against the end of its input; before a store, it checks the size against the free
space.
"""

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba.core import cgutils, types

_cgutils: Any = cgutils
_intrinsic: Any = numba.extending.intrinsic
_types: Any = types
POINTER: Any = _types.CPointer(_types.int64)
Load = Callable[[int], int]
Store = Callable[[int, int], None]


def _pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _load_integer(bits: int, *, swapped: bool) -> Load:
    def load(_: Any, address: Any) -> Any:
        def generate(__: Any, builder: Any, ___: Any, args: Any) -> Any:
            loaded = builder.load(_pointer(builder, args[0], bits), align=1)
            if swapped:
                loaded = builder.bswap(loaded)
            if bits == 8:
                return builder.zext(loaded, ir.IntType(64))
            return loaded if bits == 64 else builder.sext(loaded, ir.IntType(64))

        return types.int64(types.int64), generate

    order = "most significant byte first" if swapped else "in the machine's own order"
    load.__doc__ = f"The {bits}-bit integer at an address, {order}. A byte is unsigned."
    load.__name__ = f"load_int{bits}" if swapped else f"load_native{bits}"
    function: Load = _intrinsic(load)
    return function


load_byte = _load_integer(8, swapped=False)
load_int16 = _load_integer(16, swapped=True)
load_int32 = _load_integer(32, swapped=True)
load_int64 = _load_integer(64, swapped=True)
load_native32 = _load_integer(32, swapped=False)


def _native_store(bits: int) -> Store:
    def store(_: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, ___: Any, args: Any) -> Any:
            value = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
            builder.store(value, _pointer(builder, args[0], bits), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    store.__doc__ = f"Store the low {bits} bits of a value at an address, in the machine's own order."
    store.__name__ = f"store_{bits}"
    function: Store = _intrinsic(store)
    return function


store_byte = _native_store(8)
store_native32 = _native_store(32)
store_native64 = _native_store(64)


def _copy_bytes(_: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy bytes from one address to another. The two ranges must not overlap."""

    def generate(context: Any, builder: Any, ___: Any, args: Any) -> Any:
        _cgutils.raw_memcpy(builder, _pointer(builder, args[0], 8), _pointer(builder, args[1], 8), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


copy_bytes: Callable[[int, int, int], None] = _intrinsic(_copy_bytes)


def _entry_at(_: Any, array: Any, index: Any) -> Any:
    """Return the entries of an array of 64-bit integers from an index to the end of the array. Kernels, the compiled
    functions, use this to pass one row of a table.
    """

    def generate(__: Any, builder: Any, ___: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return POINTER(POINTER, types.int64), generate


entry_at: Callable[[Any, int], Any] = _intrinsic(_entry_at)
