"""Helpers of intrinsics: emit LLVM instructions on vectors and on the data of NumPy arrays."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

__all__ = [
    "BYTE",
    "INDEX",
    "SELECTOR",
    "cast_integer",
    "data_pointer",
    "index",
    "load",
    "shuffle",
    "splat",
    "store",
]

INDEX = ir.IntType(64)
SELECTOR = ir.IntType(32)
BYTE = ir.IntType(8)


def splat(builder: Any, value: Any, kind: Any) -> Any:
    """Return a vector with one value in all elements."""
    none = ir.Constant(kind, ir.Undefined)
    vector = builder.insert_element(none, value, ir.Constant(SELECTOR, 0))
    return shuffle(builder, vector, none, [0] * kind.count)


def shuffle(builder: Any, left: Any, right: Any, indices: list[int]) -> Any:
    """Select elements of two vectors by index."""
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(SELECTOR, len(indices)), indices))


def data_pointer(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return the pointer to an array's data."""
    return builder.bitcast(context.make_array(kind)(context, builder, array).data, BYTE.as_pointer())


def load(builder: Any, start: Any, at: Any, kind: Any) -> Any:
    """Load a value of a type from byte `at` of the data."""
    place = builder.bitcast(builder.gep(start, [at]), kind.as_pointer())
    return builder.load(place, align=1)


def store(builder: Any, value: Any, start: Any, at: Any) -> None:
    """Store a value at byte `at` of the data."""
    place = builder.bitcast(builder.gep(start, [at]), value.type.as_pointer())
    builder.store(value, place, align=1)


def cast_integer(builder: Any, value: Any, kind: Any) -> Any:
    """Convert an integer, or a vector of integers, to the width of `kind`."""
    width = getattr(value.type, "element", value.type).width
    target = getattr(kind, "element", kind).width
    if width == target:
        return value
    return builder.trunc(value, kind) if width > target else builder.zext(value, kind)


def index(value: int) -> Any:
    """Return a constant index or size."""
    return ir.Constant(INDEX, value)
