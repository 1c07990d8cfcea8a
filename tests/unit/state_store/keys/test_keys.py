"""The encoding of keys and their buckets stay what they are for ever."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.state_store.keys.key_words import KeyCodec, Keys
from tests.oracles.naive import key_words

NAN_1 = np.uint64(0x7FF8000000000001).view(np.float64)
NAN_2 = np.uint64(0xFFF0000000000123).view(np.float64)  # a signalling one

# Buckets follow from these values, which are on disk: they never change.
GOLDEN_HASHES: list[tuple[list[pa.Array], list[int]]] = [
    (
        [pa.array([0, 1, -1, 1 << 62])],
        [0xE406EA16F432EBFB, 0xEBCA77BF21B0EBF6, 0x31331AF4E89728E0, 0xDD6A3202A8127190],
    ),
    ([pa.array([True, False])], [0xEBCA77BF21B0EBF6, 0xE406EA16F432EBFB]),
    ([pa.array([0.0, 1.5, float("nan")])], [0xE406EA16F432EBFB, 0x358A47B004072BB6, 0x2A304D8EE99420B9]),
    (
        [pa.array(["", "a", "IBM", "abcdefgh", "h\u00e9llo w\u00f6rld"])],
        [
            *(0xE406EA16F432EBFB, 0xCF08B8D27579C62A, 0xCE259CAD303CF17F, 0x61C80A9A5CD2E849),
            0x877DE2544098F9CB,
        ],
    ),
    ([pa.array([b"\0"])], [0xCD5BC92E942B94EA]),
    (
        [pa.array([Decimal("12.34"), Decimal("-0.01")], pa.decimal128(10, 2))],
        [0x1BCB3E7D92883894, 0xEAB3EA93FD59AFCD],
    ),
    ([pa.array(["IBM"]), pa.array([7])], [0x850A9030790975DD]),
    ([pa.array([7]), pa.array(["IBM"])], [0x35F8F8B02A13F6AA]),
    ([pa.array([1]), pa.array([2]), pa.array([3])], [0x7E168BB718C26789]),
]


def _keys(*columns: pa.Array) -> Keys:
    return KeyCodec([pa.field(f"k{i}", c.type) for i, c in enumerate(columns)]).encode(list(columns))


@pytest.mark.parametrize(("columns", "hashes"), GOLDEN_HASHES)
def test_hashes_never_change(columns: list[pa.Array], hashes: list[int]) -> None:
    assert _keys(*columns).hashes.tolist() == hashes


def test_the_same_value_has_the_same_hash_in_integers_of_every_width() -> None:
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]
    assert len({int(_keys(pa.array([77], kind)).hashes[0]) for kind in kinds}) == 1


def test_zeros_of_both_signs_and_all_nans_are_one_key() -> None:
    doubles = pa.array([0.0, -0.0, NAN_1, NAN_2, float("nan"), 1.0])
    floats = pa.array(np.array([0, 1 << 31, 0x7FC00001, 0xFF800123, 0x7FC00000, 0x3F800000], np.uint32))
    for column in (doubles, floats.view(pa.float32())):
        hashes = _keys(column).hashes
        assert hashes[0] == hashes[1]
        assert len(set(hashes[2:5].tolist())) == 1
        assert len(set(hashes.tolist())) == 3


def test_encoding_does_not_write_to_its_input() -> None:
    values = np.array([-0.0, NAN_1])
    _keys(pa.array(values))
    assert np.signbit(values[0])
    assert values.view(np.uint64)[1] == 0x7FF8000000000001


def test_columns_of_a_key_do_not_run_into_each_other() -> None:
    first = pa.array(["a", "ab", "", "abc", "a\0"])
    second = pa.array(["bc", "c", "abc", "", "bc"])
    assert len(set(_keys(first, second).hashes.tolist())) == 5


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 17, 1000, 100_000])
def test_strings_of_every_length_come_back(length: int) -> None:
    column = pa.array(["é" * (length // 2) + "x" * (length % 2), "", "other"])
    keys = _keys(column)
    assert keys.starts.tolist()[1] == 1 + -(-length // 8)
    codec = KeyCodec([pa.field("k", pa.string())])
    assert codec.decode(keys.words, keys.starts[:-1])[0].equals(column)


def test_decimals_of_both_signs_use_both_words() -> None:
    column = pa.array([Decimal("-1"), Decimal(10**30), Decimal(-(10**37))], pa.decimal128(38, 0))
    keys = _keys(column)
    assert keys.words.tolist()[:2] == [(1 << 64) - 1, (1 << 64) - 1]
    codec = KeyCodec([pa.field("k", column.type)])
    assert codec.decode(keys.words, keys.starts[:-1])[0].equals(column)


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.int8(), pa.uint64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.time32("ms")),
        *(pa.duration("us"), pa.decimal128(9, 2), pa.float32(), pa.float64(), pa.string(), pa.binary()),
        *(pa.large_string(), pa.large_binary()),
    ],
    ids=str,
)
def test_no_rows_are_no_keys(kind: pa.DataType) -> None:
    codec = KeyCodec([pa.field("k", kind)])
    for empty in (pa.array([], kind), pa.nulls(3, kind).slice(3)):
        keys = codec.encode([empty])
        assert len(keys) == 0
        (back,) = codec.decode(keys.words, keys.starts[:-1])
        assert (back.type, len(back)) == (kind, 0)


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.int64(), pa.int64()), pa.null()],
    ids=str,
)
def test_nested_and_null_types_are_refused_as_keys(kind: pa.DataType) -> None:
    with pytest.raises(InvalidUsageError, match="column=k"):
        KeyCodec([pa.field("k", kind)])


def test_buckets_cover_their_range_evenly() -> None:
    keys = _keys(pa.array(range(10_000)))
    for buckets in (1, 2, 3, 7, 64):
        counts = np.bincount(keys.bucket(buckets), minlength=buckets)
        assert len(counts) == buckets
        assert counts.min() > 0.7 * 10_000 / buckets


def test_a_bucket_needs_no_other_key_of_the_batch() -> None:
    column = pa.array([f"key {i}" for i in range(100)])
    together = _keys(column).bucket(13).tolist()
    assert together == [int(_keys(column.slice(i, 1)).bucket(13)[0]) for i in range(100)]


def test_a_buffer_longer_than_its_values_is_read_up_to_them() -> None:
    value = Decimal("-12.34")
    column = pa.array([value], pa.decimal128(10, 2))
    longer = pa.py_buffer(column.buffers()[1].to_pybytes() + b"xyz")
    assert _keys(pa.Array.from_buffers(column.type, 1, [None, longer])).words.tolist() == key_words(value)
