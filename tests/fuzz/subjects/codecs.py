"""Random columns of all types through every goal, cascade and way to read them."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.compression import Block, Chooser, TableBlock, decode, encode, encode_table
from penstock.compression.codecs.registry import CODECS
from tests.fuzz.case import Case
from tests.samples.columns import sliced

_COLUMNS = 6
_BLOCKS = 3
_GOALS = ("fast", "balanced", "small", "500 MB/s", "5 MB/s")
_INTEGERS = tuple(getattr(pa, name)() for name in (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"
))  # fmt: skip
_TIMES = (
    pa.date32(), pa.time32("ms"), pa.time64("us"), pa.timestamp("us"), pa.timestamp("ms", "UTC"),
    pa.timestamp("ns"), pa.duration("us"),
)  # fmt: skip
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_DAY_MS = 86_400_000


def _integers(draw: random.Random, rows: int, least: int, most: int) -> list[int]:
    """Return whole numbers of some shape, within bounds."""
    span = min(most - least, draw.choice([0, 1, 9, 255, 10**4, 10**9, most - least]))
    low = least + draw.randint(0, most - least - span)
    few = [low + draw.randint(0, span) for _ in range(draw.choice([1, 3, 50]))]
    step = draw.choice([1, 7, 1000])
    shapes: list[Callable[[int], int]] = [
        lambda _: low + draw.randint(0, span),
        lambda _: draw.choice(few),
        lambda i: few[i // 17 % len(few)],
        lambda i: min(most, low + i * step + draw.randint(0, 3)),
        lambda i: min(most, low + i // 100 * step),
        lambda _: draw.choice([least, most, low]),
        lambda _: low if draw.random() < 0.99 else draw.randint(least, most),
    ]
    shape = draw.choice(shapes)
    return [max(least, min(most, shape(i))) for i in range(rows)]


def _floats(draw: random.Random, rows: int) -> list[float]:
    special = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, 1.7e308]
    shapes: list[Callable[[], float]] = [
        lambda: draw.gauss(0, 1),
        lambda: round(draw.uniform(0, 1000), draw.choice([0, 1, 2, 4])),
        lambda: draw.choice(special),
        lambda: float(draw.randint(0, 5)),
        lambda: draw.choice(special) if draw.random() < 0.02 else round(draw.random(), 3),
    ]
    shape = draw.choice(shapes)
    return [shape() for _ in range(rows)]


def _texts(draw: random.Random, rows: int) -> list[bytes]:
    few = [draw.randbytes(draw.randint(0, 12)).hex() for _ in range(draw.choice([1, 4, 300]))]
    shapes: list[Callable[[int], str]] = [
        lambda _: draw.choice(few),
        lambda i: f"/item/{i * 37 % 5000}/view?id={draw.randint(0, 99)}",
        lambda _: "".join(draw.choices("aé漢🙂 ", k=draw.randint(0, 5))),
        lambda i: "" if i % 3 else "x" * draw.choice([0, 1, 500]),
        lambda i: f"2024-01-{1 + i % 28:02}T{i % 24:02}:00:00Z",
        lambda i: few[i // 40 % len(few)],
    ]
    shape = draw.choice(shapes)
    return [shape(i).encode() for i in range(rows)]


def _values(draw: random.Random, kind: pa.DataType, rows: int) -> list[Any]:
    if pa.types.is_null(kind):
        return [None] * rows
    if pa.types.is_boolean(kind):
        return [bool(n) for n in _integers(draw, rows, 0, 1)]
    if kind in _INTEGERS:
        bits = kind.bit_width
        signed = pa.types.is_signed_integer(kind)
        return _integers(draw, rows, -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)
    if kind in _TIMES:
        if pa.types.is_time(kind):
            return _integers(draw, rows, 0, (_DAY_MS if kind.bit_width == 32 else 1000 * _DAY_MS) - 1)
        return _integers(draw, rows, -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
    if pa.types.is_floating(kind):
        return _floats(draw, rows)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return [Decimal(f"{n}E{-kind.scale}") for n in _integers(draw, rows, -most, most)]
    if kind in _TEXTS:
        texts = _texts(draw, rows)
        return texts if "binary" in str(kind) else [text.decode() for text in texts]
    if pa.types.is_struct(kind):
        children = [_values(draw, field.type, rows) for field in kind]
        return [
            dict(zip((field.name for field in kind), row, strict=True)) for row in zip(*children, strict=True)
        ]
    if pa.types.is_map(kind):
        lengths = [draw.randint(0, 3) for _ in range(rows)]
        items = iter(_values(draw, kind.item_type, sum(lengths)))
        return [[(f"k{n}", next(items)) for n in range(length)] for length in lengths]
    lengths = [draw.randint(0, 4) for _ in range(rows)]
    inner = iter(_values(draw, kind.value_type, sum(lengths)))
    return [[next(inner) for _ in range(length)] for length in lengths]


def _kind(draw: random.Random, depth: int = 0) -> pa.DataType:
    flat = [
        *_INTEGERS, *_TIMES, *_TEXTS, pa.bool_(), pa.float32(), pa.float64(), pa.null(),
        pa.decimal128(38, 10), pa.decimal128(9, 2), pa.decimal128(18, 0),
    ]  # fmt: skip
    if depth < 2 and draw.random() < 0.2:
        make = draw.choice(["list", "large_list", "struct", "map"])
        inner = _kind(draw, depth + 1)
        if make == "struct":
            return pa.struct([pa.field("a", inner), pa.field("b", _kind(draw, depth + 1))])
        if make == "map":
            return pa.map_(pa.string(), inner)
        return pa.list_(inner) if make == "list" else pa.large_list(inner)
    return draw.choice(flat)


def column(draw: random.Random, kind: pa.DataType, rows: int) -> pa.Array[Any]:
    """Return a random column, with or without nulls, whole or a slice of a longer one."""
    values = _values(draw, kind, rows)
    share = draw.choice([0.0, 0.0, 0.01, 0.5, 1.0])
    if share:
        values = [None if draw.random() < share else value for value in values]
    if kind in _TIMES:
        array = pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    else:
        array = pa.array(values, kind)
    return sliced(array, draw.choice([0, 0, 3, 9]))


def same(left: pa.Array[Any], right: pa.Array[Any]) -> bool:
    """Say whether two arrays have the same values, NaN and the sign of zero included."""
    if left.type != right.type or not left.is_valid().equals(right.is_valid()):
        return False
    if pa.types.is_floating(left.type):
        bits = pa.int32() if left.type.bit_width == 32 else pa.int64()
        return left.drop_null().view(bits).equals(right.drop_null().view(bits))
    if not pa.types.is_nested(left.type):
        return left.equals(right)
    there = pa.array(np.flatnonzero(np.asarray(left.is_valid())))
    left, right = left.take(there), right.take(there)
    if pa.types.is_struct(left.type):
        return all(map(same, left.flatten(), right.flatten()))
    if not (np.diff(left.offsets) == np.diff(right.offsets)).all():
        return False
    if pa.types.is_map(left.type):
        return same(left.keys, right.keys) and same(left.items, right.items)
    return same(left.flatten(), right.flatten())


def check(case: Case) -> None:
    """Code columns by choosers that live through several blocks, and by cascades, and read them back."""
    draw = case.random
    for number in range(_COLUMNS):
        kind, goal = _kind(draw), draw.choice(_GOALS)
        chooser = Chooser(goal)
        arrays = [column(draw, kind, draw.choice([0, 1, 7, 1000, 1024, 3001])) for _ in range(_BLOCKS)]
        for array in arrays:
            _check_block(draw, array, encode(array, chooser=chooser, column="c"), f"{kind}, {goal}")
        array, what = arrays[-1], f"column {number}, {kind}, {goal}, {len(arrays[-1])} rows"
        cascade = draw.choice([name for name in CODECS if not name.startswith(("decimal", "quantized"))])
        _check_block(draw, array, encode(array, cascade), f"{what}, {cascade}")
        if kind in (pa.string(), pa.large_string(), pa.binary()) and len(array):
            coded = array.dictionary_encode()
            _check_block(draw, array, encode(coded, chooser=chooser, column="c", kind=kind), f"{what}, coded")
        if pa.types.is_float64(kind):
            _check_bound(draw, array)
    _check_table(draw)


def _check_block(draw: random.Random, array: pa.Array[Any], data: bytes, what: str) -> None:
    block = Block(data)
    out = block.read()
    out.validate(full=True)
    assert same(out, array), what
    start = draw.randint(0, len(array))
    stop = draw.randint(start, len(array))
    for keep_dictionary in (False, True):
        part = block.read(start, stop, keep_dictionary=keep_dictionary)
        if pa.types.is_dictionary(part.type):
            part = part.cast(array.type)
        assert same(part, array.slice(start, stop - start)), f"{what}, rows {start} to {stop}"


def _check_bound(draw: random.Random, array: pa.Array[Any]) -> None:
    bound = draw.choice([0.001, 0.5, 100.0])
    out = decode(encode(array, chooser=Chooser(draw.choice(_GOALS), error_bounds={"c": bound}), column="c"))
    assert out.is_valid().equals(array.is_valid())
    before, after = (np.asarray(one.drop_null()) for one in (array, out))
    finite = np.isfinite(before)
    # A sum of doubles next to one another is rounded.
    assert (np.abs(before[finite] - after[finite]) <= bound * (1 + 1e-9)).all(), bound
    assert (before[~finite].view(np.int64) == after[~finite].view(np.int64)).all()


def _check_table(draw: random.Random) -> None:
    rows = draw.choice([0, 5, 2000])
    kinds = [_kind(draw) for _ in range(draw.randint(1, 5))]
    arrays = [column(draw, kind, rows) for kind in kinds]
    table = pa.table(arrays, names=[f"c{number}" for number in range(len(kinds))])
    block = TableBlock(encode_table(table, chooser=Chooser(draw.choice(_GOALS))), schema=table.schema)
    assert (block.rows, block.names) == (rows, table.schema.names)
    names = draw.sample(block.names, draw.randint(0, len(kinds)))
    start = draw.randint(0, rows)
    stop = draw.randint(start, rows)
    part = block.read(names, start, stop)
    assert (part.num_rows, part.schema.names) == (stop - start, names)
    for name in names:
        expected = arrays[block.names.index(name)].slice(start, stop - start)
        assert same(part.column(name), expected), f"{name} {expected.type}"
