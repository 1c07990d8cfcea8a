"""Loops over integers that the compiler cannot vectorize, written as LLVM intrinsics.

LLVM vectorizes Numba's loops if it can prove, after a long search, that vector code gives equal results. For
these loops LLVM cannot prove this, because shifts are known only at run time, arrays may overlap, or a
running sum depends on the previous value. Each function has a plain Python body, which defines its meaning
and runs if Numba is off. A compiled caller gets vector code instead, whose vectors LLVM splits into the
registers of the machine. Vector code runs and compiles several times faster. Nothing here checks bounds:
callers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from penstock.compression.kernels.llvm import (
    SELECTOR,
    cast_integer,
    data_pointer,
    index,
    load,
    shuffle,
    splat,
    store,
)

__all__ = ["bit_length", "fill", "pack_words", "running_sum", "running_xor", "unpack_words"]

_REGISTER_BITS = 512
_FILL_BITS = 256


def unpack_words(x: Any, at: int, width: int, word: Any, base: Any, out: Any) -> None:
    """Unpack 1,024 offsets of `width` bits (at least one) from lanes; write each offset plus `base`.

    The offsets are at byte `at` of `x`. The lanes' words have the type of `word`, which is no wider than the
    type of `out`.
    """
    bits = 8 * word.itemsize
    lanes = 1024 // bits
    words = x[at : at + 128 * width].view(word.dtype).reshape(width, lanes)
    mask = word.dtype.type((1 << width) - 1)
    for row in range(bits):
        k, shift = divmod(row * width, bits)
        offsets = words[k] >> word.dtype.type(shift)
        if shift + width > bits:
            offsets |= words[k + 1] << word.dtype.type(bits - shift)
        out[row * lanes : (row + 1) * lanes] = (offsets & mask).astype(out.dtype) + base


def pack_words(values: Any, base: Any, width: int, word: Any, out: Any, at: int) -> None:
    """Undo `unpack_words`: pack 1,024 values less `base` into `out` from byte `at` on."""
    bits = 8 * word.itemsize
    lanes = 1024 // bits
    words = out[at : at + 128 * width].view(word.dtype).reshape(width, lanes)
    words[:] = 0
    for row in range(bits):
        k, shift = divmod(row * width, bits)
        offsets = (values[row * lanes : (row + 1) * lanes] - base).astype(word.dtype)
        words[k] |= offsets << word.dtype.type(shift)
        if shift + width > bits:
            words[k + 1] |= offsets >> word.dtype.type(bits - shift)


def running_sum(values: Any, first: Any) -> None:
    """Replace each value by `first` plus the sum of all values up to it."""
    np.add.accumulate(values, out=values)
    values += first


def running_xor(values: Any, first: Any) -> None:
    """Replace each value by the exclusive or of `first` and all values up to it."""
    np.bitwise_xor.accumulate(values, out=values)
    values ^= first


def fill(out: Any, begin: int, end: int, value: Any) -> None:
    """Write a value from `begin` to `end`, and possibly to a few elements after `end`."""
    out[begin:end] = value


def bit_length(value: Any) -> int:
    """Return the number of bits of an unsigned integer."""
    return int(value).bit_length()


class _Lanes:
    """The LLVM types of one row of lanes, and the position of a row's bits.

    `bits` is the width of a word, and `value_bits` the width of a packed value.
    """

    def __init__(self, bits: int, value_bits: int) -> None:
        self.bits = bits
        self.word = ir.IntType(bits)
        self.words = ir.VectorType(self.word, 1024 // bits)
        self.values = ir.VectorType(ir.IntType(value_bits), 1024 // bits)
        self.row_bytes = 1024 // bits * value_bits // 8

    def place(self, builder: Any, row: Any, width: Any) -> tuple[Any, Any]:
        """Return the byte offset of a row's words, and the bit offset in a word."""
        at = builder.mul(row, width)
        words = builder.lshr(at, index(self.bits.bit_length() - 1))
        return builder.mul(words, index(128)), builder.and_(at, index(self.bits - 1))


@intrinsic
def _unpack_lanes(typing: Any, x: Any, at: Any, width: Any, word: Any, base: Any, out: Any) -> Any:
    lanes = _Lanes(word.bitwidth, out.dtype.bitwidth)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        source = builder.gep(data_pointer(context, builder, kinds[0], arguments[0]), [arguments[1]])
        target = data_pointer(context, builder, kinds[5], arguments[5])
        width = arguments[2]
        unused = builder.sub(index(lanes.bits), width)
        ones = ir.Constant(lanes.word, (1 << lanes.bits) - 1)
        mask = splat(builder, builder.lshr(ones, cast_integer(builder, unused, lanes.word)), lanes.words)
        bases = splat(builder, arguments[4], lanes.values)
        with cgutils.for_range(builder, index(lanes.bits)) as loop:
            begin, shift = lanes.place(builder, loop.index, width)
            low = load(builder, source, begin, lanes.words)
            low = builder.lshr(low, splat(builder, cast_integer(builder, shift, lanes.word), lanes.words))
            before = builder.block
            with builder.if_then(builder.icmp_unsigned(">", shift, unused)):
                high = load(builder, source, builder.add(begin, index(128)), lanes.words)
                remaining = cast_integer(builder, builder.sub(index(lanes.bits), shift), lanes.word)
                joined = builder.or_(low, builder.shl(high, splat(builder, remaining, lanes.words)))
                spill_block = builder.block
            offsets = builder.phi(lanes.words)
            offsets.add_incoming(low, before)
            offsets.add_incoming(joined, spill_block)
            values = cast_integer(builder, builder.and_(offsets, mask), lanes.values)
            place = builder.mul(loop.index, index(lanes.row_bytes))
            store(builder, builder.add(values, bases), target, place)
        return context.get_dummy_value()

    return types.void(x, types.int64, types.int64, word, out.dtype, out), generate


@intrinsic
def _pack_lanes(typing: Any, values: Any, base: Any, width: Any, word: Any, out: Any, at: Any) -> Any:
    lanes = _Lanes(word.bitwidth, values.dtype.bitwidth)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        source = data_pointer(context, builder, kinds[0], arguments[0])
        target = builder.gep(data_pointer(context, builder, kinds[4], arguments[4]), [arguments[5]])
        width = arguments[2]
        room = builder.sub(index(lanes.bits), width)
        bases = splat(builder, arguments[1], lanes.values)
        nothing = ir.Constant(lanes.words, [0] * lanes.words.count)
        filled = cgutils.alloca_once_value(builder, nothing)
        with cgutils.for_range(builder, index(lanes.bits)) as loop:
            begin, shift = lanes.place(builder, loop.index, width)
            place = builder.mul(loop.index, index(lanes.row_bytes))
            offsets = builder.sub(load(builder, source, place, lanes.values), bases)
            offsets = cast_integer(builder, offsets, lanes.words)
            low = builder.shl(offsets, splat(builder, cast_integer(builder, shift, lanes.word), lanes.words))
            words = builder.or_(builder.load(filled), low)
            builder.store(words, filled)
            with builder.if_then(builder.icmp_unsigned(">=", shift, room)):
                store(builder, words, target, begin)
                builder.store(nothing, filled)
                with builder.if_then(builder.icmp_unsigned(">", shift, room)):
                    rest = cast_integer(builder, builder.sub(index(lanes.bits), shift), lanes.word)
                    builder.store(builder.lshr(offsets, splat(builder, rest, lanes.words)), filled)
        return context.get_dummy_value()

    return types.void(values, values.dtype, types.int64, word, out, types.int64), generate


def _prefix_scan(operation: str) -> Any:
    """Return the intrinsic of a prefix scan over whole vectors."""

    @intrinsic
    def running(typing: Any, values: Any, first: Any) -> Any:
        bits = values.dtype.bitwidth
        count = _REGISTER_BITS // bits
        kind = ir.VectorType(ir.IntType(bits), count)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            join = getattr(builder, operation)
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            start = data_pointer(context, builder, signature.args[0], arguments[0])
            nothing = ir.Constant(kind, [0] * count)
            before = cgutils.alloca_once_value(builder, splat(builder, arguments[1], kind))
            with cgutils.for_range(builder, builder.udiv(array.nitems, index(count))) as loop:
                at = builder.mul(loop.index, index(_REGISTER_BITS // 8))
                sums = load(builder, start, at, kind)
                reach = 1
                while reach < count:
                    moved = [i if i < reach else count + i - reach for i in range(count)]
                    sums = join(sums, shuffle(builder, nothing, sums, moved))
                    reach *= 2
                carried = builder.load(before)
                last = shuffle(builder, sums, nothing, [count - 1] * count)
                builder.store(join(carried, last), before)
                store(builder, join(carried, sums), start, at)
            return builder.extract_element(builder.load(before), ir.Constant(SELECTOR, 0))

        return values.dtype(values, values.dtype), generate

    return running


_sums = _prefix_scan("add")
_xors = _prefix_scan("xor")


@intrinsic
def _leading_zeros(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def _store_splat(typing: Any, out: Any, at: Any, value: Any) -> Any:
    bits = out.dtype.bitwidth
    kind = ir.VectorType(ir.IntType(bits), _FILL_BITS // bits)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = data_pointer(context, builder, signature.args[0], arguments[0])
        place = builder.mul(arguments[1], index(bits // 8))
        store(builder, splat(builder, arguments[2], kind), start, place)
        return context.get_dummy_value()

    return types.void(out, types.int64, out.dtype), generate


@overload(unpack_words, strict=False)
def _unpack_words_form(x: Any, at: Any, width: Any, word: Any, base: Any, out: Any) -> Callable[..., Any]:
    if word.bitwidth > out.dtype.bitwidth:
        return lambda x, at, width, word, base, out: None

    def form(x: Any, at: Any, width: Any, word: Any, base: Any, out: Any) -> None:
        _unpack_lanes(x, at, width, word, base, out)

    return form


@overload(pack_words, strict=False)
def _pack_words_form(values: Any, base: Any, width: Any, word: Any, out: Any, at: Any) -> Callable[..., Any]:
    if word.bitwidth > values.dtype.bitwidth:
        return lambda values, base, width, word, out, at: None

    def form(values: Any, base: Any, width: Any, word: Any, out: Any, at: Any) -> None:
        _pack_lanes(values, base, width, word, out, at)

    return form


@overload(running_sum, strict=False)
def _running_sum_form(values: Any, first: Any) -> Callable[..., Any]:
    count = _REGISTER_BITS // values.dtype.bitwidth

    def form(values: Any, first: Any) -> None:
        total = _sums(values, first)
        for i in range(values.shape[0] // count * count, values.shape[0]):
            total += values[i]
            values[i] = total

    return form


@overload(running_xor, strict=False)
def _running_xor_form(values: Any, first: Any) -> Callable[..., Any]:
    count = _REGISTER_BITS // values.dtype.bitwidth

    def form(values: Any, first: Any) -> None:
        total = _xors(values, first)
        for i in range(values.shape[0] // count * count, values.shape[0]):
            total ^= values[i]
            values[i] = total

    return form


@overload(fill, strict=False)
def _fill_form(out: Any, begin: Any, end: Any, value: Any) -> Callable[..., Any]:
    count = _FILL_BITS // out.dtype.bitwidth

    def form(out: Any, begin: Any, end: Any, value: Any) -> None:
        if end + count > out.shape[0]:
            for i in range(begin, end):
                out[i] = value
        else:
            at = begin
            while at < end:
                _store_splat(out, at, value)
                at += count

    return form


@overload(bit_length, strict=False)
def _bit_length_form(value: Any) -> Callable[..., Any]:
    return lambda value: 64 - np.int64(_leading_zeros(np.uint64(value)))
