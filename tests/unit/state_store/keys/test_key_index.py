"""The index numbers keys densely, whatever their hashes and however many there are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.state_store.keys.key_index import KeyIndex, grow
from penstock.state_store.keys.key_words import KeyCodec, Keys

CODEC = KeyCodec([pa.field("k", pa.int64())])


def _keys(values: list[int]) -> Keys:
    return CODEC.encode([pa.array(values, pa.int64())])


def _colliding(count: int, hash_: int) -> Keys:
    plain = _keys(list(range(count)))
    return Keys(plain.words, plain.starts, np.full(count, hash_, np.uint64))


def test_numbers_follow_first_appearance() -> None:
    index = KeyIndex()
    assert index.find_or_add(_keys([30, 10, 30, 20, 10])).tolist() == [0, 1, 0, 2, 1]
    assert index.find(_keys([20, 99, 30])).tolist() == [2, -1, 0]
    assert len(index) == 3


def test_an_empty_index_finds_nothing() -> None:
    assert KeyIndex().find(_keys([1, 2])).tolist() == [-1, -1]
    assert KeyIndex().find_or_add(_keys([])).tolist() == []


@pytest.mark.parametrize("hash_", [0, 1, 127, (1 << 64) - 1])
def test_keys_with_one_hash_stay_apart(hash_: int) -> None:
    index = KeyIndex()
    assert index.find_or_add(_colliding(300, hash_)).tolist() == list(range(300))
    assert index.find(_colliding(301, hash_)).tolist() == [*range(300), -1]


def test_a_key_that_begins_like_another_is_another() -> None:
    words = np.array([1, 1, 2, 1, 2, 3], np.uint64)
    keys = Keys(words, np.array([0, 1, 3, 6]), np.zeros(3, np.uint64))
    index = KeyIndex()
    assert index.find_or_add(keys).tolist() == [0, 1, 2]
    assert index.find(keys).tolist() == [0, 1, 2]


@pytest.mark.parametrize("count", [63, 64, 65, 127, 128, 129, 10_000])
def test_growth_keeps_every_number(count: int) -> None:
    index = KeyIndex()
    for begin in range(0, count, 40):
        index.find_or_add(_keys(list(range(begin, min(begin + 40, count)))))
    assert index.find(_keys(list(range(count)))).tolist() == list(range(count))
    assert index.find(_keys([count])).tolist() == [-1]


def test_one_key_may_be_longer_than_all_others_together() -> None:
    codec = KeyCodec([pa.field("k", pa.string())])
    values = ["a", "b" * 100_000, "c", "b" * 99_999]
    index = KeyIndex()
    numbers = index.find_or_add(codec.encode([pa.array(values)]))
    assert numbers.tolist() == [0, 1, 2, 3]
    assert codec.decode(index.words, index.starts(numbers))[0].to_pylist() == values


def test_the_index_says_how_much_memory_it_holds() -> None:
    index = KeyIndex()
    index.find_or_add(_keys(list(range(10_000))))
    assert 10_000 * (8 + 8 + 8 + 4) <= index.size_bytes <= 20 * 10_000 * 8


def test_growing_at_least_doubles_and_keeps_what_was_there() -> None:
    array = np.arange(100)
    assert grow(array, 100) is array
    larger = grow(array, 101)
    assert len(larger) == 200
    assert larger[:100].tolist() == array.tolist()
    assert not larger[100:].any()
    assert grow(array, 101, used=3).tolist() == [0, 1, 2, *[0] * 197]
    assert grow(np.zeros((2, 3)), 3).shape == (64, 3)
