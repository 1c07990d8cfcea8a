"""Keys of every type become the right words and come back."""

from __future__ import annotations

import math
import struct
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import KeyCodec, Keys, hash_words
from penstock.state_store.keys.word_index import WordIndex, number_block
from tests.oracles.naive import bucket_of, hash_of, key_words


def _integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    context = Context(prec=precision)
    return st.integers(-most, most).map(lambda unscaled: Decimal(unscaled).scaleb(-scale, context))


# Dates and times are drawn as the integers that stand for them.
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *[(kind, _integers(kind.bit_width)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())],
    *[
        (kind, _integers(kind.bit_width, signed=False))
        for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    ],
    (pa.bool_(), st.booleans()),
    (pa.date32(), _integers(32)),
    (pa.date64(), _integers(33).map(lambda day: day * 86_400_000)),
    (pa.time32("s"), st.integers(0, 86_399)),
    (pa.time32("ms"), st.integers(0, 86_399_999)),
    (pa.time64("us"), st.integers(0, 86_399_999_999)),
    (pa.time64("ns"), st.integers(0, 86_399_999_999_999)),
    *[(pa.timestamp(unit), _integers(64)) for unit in ("s", "ms", "us", "ns")],
    (pa.timestamp("us", "UTC"), _integers(64)),
    (pa.timestamp("ms", "Europe/Zurich"), _integers(64)),
    *[(pa.duration(unit), _integers(64)) for unit in ("s", "us")],
    (pa.decimal128(5, 2), _decimals(5, 2)),
    (pa.decimal128(18, 0), _decimals(18, 0)),
    (pa.decimal128(38, 10), _decimals(38, 10)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    *[(kind, st.text(max_size=20)) for kind in (pa.string(), pa.large_string())],
    *[(kind, st.binary(max_size=40)) for kind in (pa.binary(), pa.large_binary())],
]


def make_array(values: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Return an array of `kind`; dates and times from their integers."""
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return pa.array(values, kind)


def _sliced(column: pa.Array[Any], before: int, *, nulls: bool) -> pa.Array[Any]:
    """Return `column` as a slice of a longer array."""
    if not before:
        return column
    ends = pa.nulls(before, column.type) if nulls else column.take(pa.array([0] * before))
    return pa.concat_arrays([ends, column, ends]).slice(before, len(column))


@st.composite
def _columns(draw: st.DrawFn) -> tuple[list[pa.Array[Any]], list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*[values for _, values in kinds]), min_size=1, max_size=6))
    arrays = [make_array([row[i] for row in rows], kind) for i, (kind, _) in enumerate(kinds)]
    before, nulls = draw(st.integers(0, 9)), draw(st.booleans())
    return [_sliced(array, before, nulls=nulls) for array in arrays], rows


def _codec(columns: list[pa.Array[Any]]) -> KeyCodec:
    return KeyCodec([pa.field(f"k{i}", column.type) for i, column in enumerate(columns)])


def _canonical(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("<d", math.nan if math.isnan(value) else value + 0.0)
    return value


@given(_columns())
def test_words_and_hashes_equal_the_plain_encoding(case: tuple[list[pa.Array[Any]], list[Any]]) -> None:
    columns, rows = case
    keys = _codec(columns).encode(columns)
    expected = [key_words(*row) for row in rows]
    starts = keys.starts.tolist()
    assert [keys.words[a:b].tolist() for a, b in pairwise(starts)] == expected
    assert keys.hashes.tolist() == [hash_of(words) for words in expected]
    assert keys.bucket(7).tolist() == [bucket_of(words, 7) for words in expected]


@given(_columns(), st.data())
def test_keys_come_back_with_their_types_in_any_order(
    case: tuple[list[pa.Array[Any]], list[Any]], data: st.DataObject
) -> None:
    columns, rows = case
    codec = _codec(columns)
    keys = codec.encode(columns)
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    decoded = codec.decode(keys.words, keys.starts[np.array(order, np.int64)])
    for i, (column, back) in enumerate(zip(columns, decoded, strict=True)):
        back.validate(full=True)
        assert back.type == column.type
        expected = make_array([rows[j][i] for j in order], column.type)
        if pa.types.is_floating(column.type):
            assert [_canonical(v) for v in back.to_pylist()] == [_canonical(v) for v in expected.to_pylist()]
        else:
            assert back.equals(expected)


@given(st.lists(st.lists(st.integers(0, (1 << 64) - 1), max_size=5), max_size=20))
def test_hashes_equal_the_plain_hash(keys: list[list[int]]) -> None:
    starts = np.cumsum([0, *map(len, keys)])
    words = np.array([word for key in keys for word in key], np.uint64)
    assert hash_words(words, starts.astype(np.int64)).tolist() == [hash_of(key) for key in keys]


@given(
    st.lists(
        st.lists(
            st.lists(st.integers(0, 3), max_size=3) | st.lists(st.integers(0, 99), min_size=1, max_size=1),
            max_size=40,
        )
        | st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=1), max_size=90),
        max_size=6,
    ),
    st.sampled_from([1, 2, 1 << 62]),
)
def test_the_index_numbers_keys_as_a_dictionary_does_whatever_their_hashes(
    batches: list[list[list[int]]], modulus: int
) -> None:
    index, model = KeyIndex(), dict[tuple[int, ...], int]()
    for batch in batches:
        keys = _with_hashes(batch, modulus)
        assert index.find(keys).tolist() == [model.get(tuple(key), -1) for key in batch]
        expected = [model.setdefault(tuple(key), len(model)) for key in batch]
        assert index.find_or_add(keys).tolist() == expected
        assert len(index) == len(model)
    starts = index.starts(np.arange(len(index)))
    for (key, number), start in zip(model.items(), starts.tolist(), strict=True):
        assert index.words[start : start + len(key)].tolist() == list(key), number


@given(st.lists(st.text(max_size=20), max_size=20, unique=True), st.data())
def test_a_subset_of_an_index_numbers_its_keys_anew(texts: list[str], data: st.DataObject) -> None:
    codec = KeyCodec([pa.field("k", pa.string())])
    keys = codec.encode([pa.array(texts, pa.string())])
    index = KeyIndex()
    index.reserve(data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30)))
    index.find_or_add(keys)
    numbers = data.draw(st.lists(st.sampled_from(range(len(texts))), unique=True)) if texts else []
    other = index.subset(np.array(numbers, np.int64))
    expected = [numbers.index(number) if number in numbers else -1 for number in range(len(texts))]
    assert other.find(keys).tolist() == expected
    decoded = codec.decode(other.words, other.starts(np.arange(len(other))))
    assert decoded[0].to_pylist() == [texts[number] for number in numbers]
    more = other.find_or_add(keys)
    assert sorted(more.tolist()) == list(range(len(texts)))


def _with_hashes(batch: list[list[int]], modulus: int) -> Keys:
    """Return keys whose hashes collide modulo `modulus`."""
    starts = np.cumsum([0, *map(len, batch)]).astype(np.int64)
    words = np.array([word for key in batch for word in key], np.uint64)
    hashes = np.array([hash_of(key) % modulus for key in batch], np.uint64)
    return Keys(words, starts, hashes)


@given(st.lists(st.integers(0, 3000), max_size=12), st.integers(1, 700))
def test_words_get_dense_numbers_in_order_of_first_appearance(starts: list[int], size: int) -> None:
    index, model = WordIndex(), dict[int, int]()
    for start in starts:
        words = [word * 2**40 + 1 for word in (*range(start, start + size), start)]
        index.make_room()
        index.count = number_block(
            np.array(words, np.uint64), 0, len(words), index.table, index.known, index.count, index.numbers
        )
        assert index.numbers[: len(words)].tolist() == [model.setdefault(w, len(model)) for w in words]
    assert index.known[: index.count].tolist() == list(model)
