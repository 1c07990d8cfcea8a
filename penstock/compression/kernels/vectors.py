"""Loops that the compiler cannot vectorize, written as LLVM intrinsics.

LLVM vectorizes Numba's loops if it can prove, after a long search, that this is safe. Here it cannot: shifts
are known only at run time, arrays may overlap, a running sum depends on the previous value. Each function has
a plain Python body, which defines its meaning and runs if Numba is off. A compiled caller gets vector code
instead, whose vectors LLVM splits into the registers of the machine. It runs and compiles several times
faster. Nothing here checks bounds: callers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

__all__ = [
    "bit_length",
    "classes_at",
    "copy_bytes",
    "fill",
    "matches_at",
    "pack_words",
    "put_word",
    "running_sum",
    "running_xor",
    "trailing_zeros",
    "unpack_words",
    "word_at",
]

_REGISTER_BITS = 512
_FILL_BITS = 256
_INDEX = ir.IntType(64)
_SELECTOR = ir.IntType(32)
_BYTE = ir.IntType(8)


def bit_length(value: Any) -> int:
    """Return the number of bits of an unsigned integer."""
    return int(value).bit_length()


def unpack_words(x: Any, at: int, width: int, word: Any, base: Any, out: Any) -> None:
    """Unpack 1,024 offsets of `width` bits (at least one) from lanes; write each plus `base`.

    They are at byte `at` of `x`; the lanes' words are of the type of `word`, no wider than `out`'s.
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
    """Replace each value by `first` and all values up to it, joined by exclusive or."""
    np.bitwise_xor.accumulate(values, out=values)
    values ^= first


def copy_bytes(source: Any, begin: int, target: Any, at: int, size: int) -> None:
    """Copy `size` bytes from one array to another, and up to 16 more, for which both have padding."""
    target[at : at + size] = source[begin : begin + size]


def fill(out: Any, begin: int, end: int, value: Any) -> None:
    """Write a value from `begin` to `end`, and perhaps over a few elements behind."""
    out[begin:end] = value


def word_at(source: Any, at: int) -> Any:
    """Return the 8 bytes from `at` on as one word."""
    return source[at : at + 8].view(np.uint64)[0]


def put_word(target: Any, at: int, word: Any) -> None:
    """Write one word over the 8 bytes from `at` on."""
    target[at : at + 8].view(np.uint64)[0] = word


def classes_at(source: Any, at: int) -> tuple[Any, Any]:
    """Return bit masks of the digits and of the letters in the 32 bytes from `at` on.

    Bytes that are not ASCII count as letters.
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


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    """Return a vector with one value in all elements."""
    none = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(none, value, ir.Constant(_SELECTOR, 0))
    return _shuffle(builder, one, none, [0] * kind.count)


def _shuffle(builder: Any, left: Any, right: Any, chosen: list[int]) -> Any:
    """Select elements of two vectors by index."""
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_SELECTOR, len(chosen)), chosen))


def _start(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return the pointer to an array's data."""
    return builder.bitcast(context.make_array(kind)(context, builder, array).data, _BYTE.as_pointer())


def _load(builder: Any, start: Any, at: Any, kind: Any) -> Any:
    place = builder.bitcast(builder.gep(start, [at]), kind.as_pointer())
    return builder.load(place, align=1)


def _store(builder: Any, value: Any, start: Any, at: Any) -> None:
    place = builder.bitcast(builder.gep(start, [at]), value.type.as_pointer())
    builder.store(value, place, align=1)


def _cast(builder: Any, value: Any, kind: Any) -> Any:
    """Convert an integer, or a vector of integers, to another width."""
    own = getattr(value.type, "element", value.type).width
    wanted = getattr(kind, "element", kind).width
    if own == wanted:
        return value
    return builder.trunc(value, kind) if own > wanted else builder.zext(value, kind)


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


class _Lanes:
    """The types of one row of lanes, and the position of a row's bits.

    `bits` is the width of a word, `value_bits` the width of a packed value.
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
        words = builder.lshr(at, _number(self.bits.bit_length() - 1))
        return builder.mul(words, _number(128)), builder.and_(at, _number(self.bits - 1))


@intrinsic
def _unpack_lanes(typing: Any, x: Any, at: Any, width: Any, word: Any, base: Any, out: Any) -> Any:
    lanes = _Lanes(word.bitwidth, out.dtype.bitwidth)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        source = builder.gep(_start(context, builder, kinds[0], arguments[0]), [arguments[1]])
        target = _start(context, builder, kinds[5], arguments[5])
        width = arguments[2]
        unused = builder.sub(_number(lanes.bits), width)
        ones = ir.Constant(lanes.word, (1 << lanes.bits) - 1)
        mask = _splat(builder, builder.lshr(ones, _cast(builder, unused, lanes.word)), lanes.words)
        bases = _splat(builder, arguments[4], lanes.values)
        with cgutils.for_range(builder, _number(lanes.bits)) as loop:
            begin, shift = lanes.place(builder, loop.index, width)
            low = _load(builder, source, begin, lanes.words)
            low = builder.lshr(low, _splat(builder, _cast(builder, shift, lanes.word), lanes.words))
            before = builder.block
            with builder.if_then(builder.icmp_unsigned(">", shift, unused)):
                high = _load(builder, source, builder.add(begin, _number(128)), lanes.words)
                rest = _cast(builder, builder.sub(_number(lanes.bits), shift), lanes.word)
                both = builder.or_(low, builder.shl(high, _splat(builder, rest, lanes.words)))
                within = builder.block
            offsets = builder.phi(lanes.words)
            offsets.add_incoming(low, before)
            offsets.add_incoming(both, within)
            values = _cast(builder, builder.and_(offsets, mask), lanes.values)
            place = builder.mul(loop.index, _number(lanes.row_bytes))
            _store(builder, builder.add(values, bases), target, place)
        return context.get_dummy_value()

    return types.void(x, types.int64, types.int64, word, out.dtype, out), generate


@intrinsic
def _pack_lanes(typing: Any, values: Any, base: Any, width: Any, word: Any, out: Any, at: Any) -> Any:
    lanes = _Lanes(word.bitwidth, values.dtype.bitwidth)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        source = _start(context, builder, kinds[0], arguments[0])
        target = builder.gep(_start(context, builder, kinds[4], arguments[4]), [arguments[5]])
        width = arguments[2]
        room = builder.sub(_number(lanes.bits), width)
        bases = _splat(builder, arguments[1], lanes.values)
        nothing = ir.Constant(lanes.words, [0] * lanes.words.count)
        filled = cgutils.alloca_once_value(builder, nothing)
        with cgutils.for_range(builder, _number(lanes.bits)) as loop:
            begin, shift = lanes.place(builder, loop.index, width)
            place = builder.mul(loop.index, _number(lanes.row_bytes))
            offsets = builder.sub(_load(builder, source, place, lanes.values), bases)
            offsets = _cast(builder, offsets, lanes.words)
            low = builder.shl(offsets, _splat(builder, _cast(builder, shift, lanes.word), lanes.words))
            words = builder.or_(builder.load(filled), low)
            builder.store(words, filled)
            with builder.if_then(builder.icmp_unsigned(">=", shift, room)):
                _store(builder, words, target, begin)
                builder.store(nothing, filled)
                with builder.if_then(builder.icmp_unsigned(">", shift, room)):
                    rest = _cast(builder, builder.sub(_number(lanes.bits), shift), lanes.word)
                    builder.store(builder.lshr(offsets, _splat(builder, rest, lanes.words)), filled)
        return context.get_dummy_value()

    return types.void(values, values.dtype, types.int64, word, out, types.int64), generate


def _running(operation: str) -> Any:
    """Return the intrinsic of a prefix scan over whole vectors."""

    @intrinsic
    def running(typing: Any, values: Any, first: Any) -> Any:
        bits = values.dtype.bitwidth
        count = _REGISTER_BITS // bits
        kind = ir.VectorType(ir.IntType(bits), count)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            join = getattr(builder, operation)
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            start = _start(context, builder, signature.args[0], arguments[0])
            nothing = ir.Constant(kind, [0] * count)
            before = cgutils.alloca_once_value(builder, _splat(builder, arguments[1], kind))
            with cgutils.for_range(builder, builder.udiv(array.nitems, _number(count))) as loop:
                at = builder.mul(loop.index, _number(_REGISTER_BITS // 8))
                sums = _load(builder, start, at, kind)
                reach = 1
                while reach < count:
                    moved = [i if i < reach else count + i - reach for i in range(count)]
                    sums = join(sums, _shuffle(builder, nothing, sums, moved))
                    reach *= 2
                carried = builder.load(before)
                last = _shuffle(builder, sums, nothing, [count - 1] * count)
                builder.store(join(carried, last), before)
                _store(builder, join(carried, sums), start, at)
            return builder.extract_element(builder.load(before), ir.Constant(_SELECTOR, 0))

        return values.dtype(values, values.dtype), generate

    return running


_sums = _running("add")
_xors = _running("xor")


@intrinsic
def _leading_zeros(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def _copy_16(typing: Any, source: Any, begin: Any, target: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        some = _load(
            builder,
            _start(context, builder, signature.args[0], arguments[0]),
            arguments[1],
            ir.VectorType(_BYTE, 16),
        )
        _store(builder, some, _start(context, builder, signature.args[2], arguments[2]), arguments[3])
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate


@intrinsic
def _word_at(typing: Any, source: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = _start(context, builder, signature.args[0], arguments[0])
        return _load(builder, start, arguments[1], _INDEX)

    return types.uint64(source, types.int64), generate


@intrinsic
def _put_word(typing: Any, target: Any, at: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = _start(context, builder, signature.args[0], arguments[0])
        _store(builder, arguments[2], start, arguments[1])
        return context.get_dummy_value()

    return types.void(target, types.int64, types.uint64), generate


@intrinsic
def _classes_at(typing: Any, source: Any, at: Any) -> Any:
    kind = ir.VectorType(_BYTE, 32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = _start(context, builder, signature.args[0], arguments[0])
        some = _load(builder, start, arguments[1], kind)

        def all_of(value: int) -> Any:
            return ir.Constant(kind, [value] * 32)

        digits = builder.icmp_unsigned("<", builder.sub(some, all_of(48)), all_of(10))
        small = builder.or_(some, all_of(32))
        letters = builder.icmp_unsigned("<", builder.sub(small, all_of(97)), all_of(26))
        letters = builder.or_(letters, builder.icmp_signed("<", some, all_of(0)))
        both = [builder.zext(builder.bitcast(bits, _SELECTOR), _INDEX) for bits in (digits, letters)]
        return context.make_tuple(builder, signature.return_type, both)

    return types.UniTuple(types.uint64, 2)(source, types.int64), generate


@intrinsic
def _matches_at(typing: Any, source: Any, at: Any, wanted: Any) -> Any:
    kind = ir.VectorType(_BYTE, 32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = _start(context, builder, signature.args[0], arguments[0])
        some = _load(builder, start, arguments[1], kind)
        same = builder.icmp_unsigned("==", some, _splat(builder, _cast(builder, arguments[2], _BYTE), kind))
        return builder.zext(builder.bitcast(same, _SELECTOR), _INDEX)

    return types.uint64(source, types.int64, types.int64), generate


@intrinsic
def _trailing_zeros(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def _store_splat(typing: Any, out: Any, at: Any, value: Any) -> Any:
    bits = out.dtype.bitwidth
    kind = ir.VectorType(ir.IntType(bits), _FILL_BITS // bits)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = _start(context, builder, signature.args[0], arguments[0])
        place = builder.mul(arguments[1], _number(bits // 8))
        _store(builder, _splat(builder, arguments[2], kind), start, place)
        return context.get_dummy_value()

    return types.void(out, types.int64, out.dtype), generate


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


@overload(bit_length, strict=False)
def _bit_length_form(value: Any) -> Callable[..., Any]:
    return lambda value: 64 - np.int64(_leading_zeros(np.uint64(value)))


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


@overload(copy_bytes, strict=False)
def _copy_bytes_form(source: Any, begin: Any, target: Any, at: Any, size: Any) -> Callable[..., Any]:
    def form(source: Any, begin: Any, target: Any, at: Any, size: Any) -> None:
        _copy_16(source, begin, target, at)
        done = 16
        while done < size:
            _copy_16(source, begin + done, target, at + done)
            done += 16

    return form
