"""Operations on the bytes of texts, 8 to 32 at a time, written as LLVM intrinsics.

As in `integer_vectors`, the plain Python body of each function defines its meaning, and nothing checks
bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from penstock.compression.kernels.llvm import (
    BYTE,
    INDEX,
    SELECTOR,
    cast_integer,
    data_pointer,
    load,
    splat,
    store,
)

__all__ = ["classes_at", "copy_bytes", "matches_at", "put_word", "trailing_zeros", "word_at"]


def copy_bytes(source: Any, begin: int, target: Any, at: int, size: int) -> None:
    """Copy `size` bytes from one array to another, and up to 16 more bytes, for which both have padding."""
    target[at : at + size] = source[begin : begin + size]


def word_at(source: Any, at: int) -> Any:
    """Return the 8 bytes from `at` on as one word."""
    return source[at : at + 8].view(np.uint64)[0]


def put_word(target: Any, at: int, word: Any) -> None:
    """Write one word over the 8 bytes from `at` on."""
    target[at : at + 8].view(np.uint64)[0] = word


def classes_at(source: Any, at: int) -> tuple[Any, Any]:
    """Return bit masks of the digits and of the letters in the 32 bytes from `at` on.

    Bytes that are not ASCII are treated as letters.
    """
    digits = letters = 0
    for i, byte in enumerate(source[at : at + 32].tolist()):
        digits |= (48 <= byte <= 57) << i
        letters |= (97 <= byte | 32 <= 122 or byte >= 128) << i
    return np.uint64(digits), np.uint64(letters)


def matches_at(source: Any, at: int, wanted: int) -> Any:
    """Return a bit mask of the bytes that equal `wanted` in the 32 bytes from `at` on."""
    return np.uint64(sum((byte == wanted) << i for i, byte in enumerate(source[at : at + 32].tolist())))


def trailing_zeros(value: Any) -> int:
    """Count the trailing zero bits of an unsigned 64-bit integer; 64 for 0."""
    number = int(value)
    return (number & -number).bit_length() - 1 if number else 64


@intrinsic
def _copy_16(typing: Any, source: Any, begin: Any, target: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        some = load(
            builder,
            data_pointer(context, builder, signature.args[0], arguments[0]),
            arguments[1],
            ir.VectorType(BYTE, 16),
        )
        store(builder, some, data_pointer(context, builder, signature.args[2], arguments[2]), arguments[3])
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate


@intrinsic
def _word_at(typing: Any, source: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = data_pointer(context, builder, signature.args[0], arguments[0])
        return load(builder, start, arguments[1], INDEX)

    return types.uint64(source, types.int64), generate


@intrinsic
def _put_word(typing: Any, target: Any, at: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = data_pointer(context, builder, signature.args[0], arguments[0])
        store(builder, arguments[2], start, arguments[1])
        return context.get_dummy_value()

    return types.void(target, types.int64, types.uint64), generate


@intrinsic
def _classes_at(typing: Any, source: Any, at: Any) -> Any:
    kind = ir.VectorType(BYTE, 32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = data_pointer(context, builder, signature.args[0], arguments[0])
        chunk = load(builder, start, arguments[1], kind)

        def all_of(value: int) -> Any:
            return ir.Constant(kind, [value] * 32)

        digits = builder.icmp_unsigned("<", builder.sub(chunk, all_of(48)), all_of(10))
        small = builder.or_(chunk, all_of(32))
        letters = builder.icmp_unsigned("<", builder.sub(small, all_of(97)), all_of(26))
        letters = builder.or_(letters, builder.icmp_signed("<", chunk, all_of(0)))
        masks = [builder.zext(builder.bitcast(bits, SELECTOR), INDEX) for bits in (digits, letters)]
        return context.make_tuple(builder, signature.return_type, masks)

    return types.UniTuple(types.uint64, 2)(source, types.int64), generate


@intrinsic
def _matches_at(typing: Any, source: Any, at: Any, wanted: Any) -> Any:
    kind = ir.VectorType(BYTE, 32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = data_pointer(context, builder, signature.args[0], arguments[0])
        chunk = load(builder, start, arguments[1], kind)
        equal = builder.icmp_unsigned(
            "==", chunk, splat(builder, cast_integer(builder, arguments[2], BYTE), kind)
        )
        return builder.zext(builder.bitcast(equal, SELECTOR), INDEX)

    return types.uint64(source, types.int64, types.int64), generate


@intrinsic
def _trailing_zeros(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@overload(word_at, strict=False)
def _word_at_form(source: Any, at: Any) -> Callable[..., Any]:
    def form(source: Any, at: Any) -> Any:
        return _word_at(source, at)

    return form


@overload(put_word, strict=False)
def _put_word_form(target: Any, at: Any, word: Any) -> Callable[..., Any]:
    def form(target: Any, at: Any, word: Any) -> None:
        _put_word(target, at, word)

    return form


@overload(classes_at, strict=False)
def _classes_at_form(source: Any, at: Any) -> Callable[..., Any]:
    def form(source: Any, at: Any) -> Any:
        return _classes_at(source, at)

    return form


@overload(matches_at, strict=False)
def _matches_at_form(source: Any, at: Any, wanted: Any) -> Callable[..., Any]:
    def form(source: Any, at: Any, wanted: Any) -> Any:
        return _matches_at(source, at, wanted)

    return form


@overload(trailing_zeros, strict=False)
def _trailing_zeros_form(value: Any) -> Callable[..., Any]:
    return lambda value: np.int64(_trailing_zeros(np.uint64(value)))


@overload(copy_bytes, strict=False)
def _copy_bytes_form(source: Any, begin: Any, target: Any, at: Any, size: Any) -> Callable[..., Any]:
    def form(source: Any, begin: Any, target: Any, at: Any, size: Any) -> None:
        _copy_16(source, begin, target, at)
        copied = 16
        while copied < size:
            _copy_16(source, begin + copied, target, at + copied)
            copied += 16

    return form
