"""A set of keys equals a plain set, even with collisions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.state_store.keys import key_set
from penstock.state_store.keys.key_set import KeySet
from penstock.state_store.keys.key_words import KeyCodec, hash_words
from tests.oracles.naive import hash_of, second_hash_of

_64 = (1 << 64) - 1
_STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "contains"]), st.lists(st.integers(0, 40), max_size=30)),
    max_size=8,
)


@given(_STEPS, st.integers(42, 60), st.sampled_from([1, 2]), st.integers(0, 4))
def test_slots_equal_a_set_where_many_fingerprints_have_one_home(
    steps: list[tuple[str, list[int]]], slots: int, width: int, homes: int
) -> None:
    table, model = np.zeros((slots, width), np.uint64), set[int]()
    for step, numbers in steps:
        # The upper half says where the search begins, also at the very end; the last word is not 0.
        first = [((_64 >> 32) - number % (homes + 1) << 32) + number + 1 for number in numbers]
        prints = np.array([[f, f | 1][:width] for f in first], np.uint64).reshape(-1, width)
        if step == "add":
            assert key_set._add(prints, table) == len(set(numbers) - model)
            model |= set(numbers)
        elif step == "remove":
            assert key_set._remove(prints, table) == len(model & set(numbers))
            model -= set(numbers)
        else:
            out = np.empty(len(numbers), np.bool_)
            key_set._contains(prints, table, out)
            assert out.tolist() == [number in model for number in numbers]
        assert np.count_nonzero(table[:, -1]) == len(model)


@given(_STEPS, st.sampled_from([pa.int64(), pa.string()]))
def test_a_set_of_keys_equals_a_plain_set(steps: list[tuple[str, list[int]]], kind: pa.DataType) -> None:
    codec = KeyCodec([pa.field("k", kind)])
    known, model = KeySet(one_word=kind == pa.int64(), growth=1.01), set[int]()
    for step, numbers in steps:
        # One key has the fingerprint 0.
        values = [_UNHASHED_ZERO if number == 7 else number * 1001 for number in numbers]
        keys = codec.encode([pa.array(values if kind == pa.int64() else map(str, values), kind)])
        if step == "add":
            assert known.add(keys) == len(set(numbers) - model)
            model |= set(numbers)
        elif step == "remove":
            assert known.remove(keys) == len(model & set(numbers))
            model -= set(numbers)
        else:
            assert known.contains(keys).tolist() == [number in model for number in numbers]
        assert len(known) == len(model)


def _undone(hashed: int) -> int:
    """Return the one word that has this hash."""

    def unshifted(value: int, shift: int) -> int:
        out = value
        for _ in range(64 // shift + 1):
            out = value ^ out >> shift
        return out

    multiplier, mixes = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
    h = unshifted(hashed, 31)
    h = unshifted(h * pow(mixes[1], -1, 1 << 64) & _64, 27)
    h = unshifted(h * pow(mixes[0], -1, 1 << 64) & _64, 30)
    h = unshifted(h, 30) * pow(multiplier, -1, 1 << 64) & _64
    return h ^ multiplier


_UNHASHED_ZERO = _undone(0) - (1 << 64 if _undone(0) >> 63 else 0)


@given(st.integers(0, _64))
def test_the_hash_of_one_word_can_be_undone(word: int) -> None:
    assert _undone(hash_of([word])) == word


def test_a_key_has_the_fingerprint_that_means_empty() -> None:
    assert hash_words(np.array([_UNHASHED_ZERO], np.int64).view(np.uint64), np.array([0, 1])).tolist() == [0]


@given(st.lists(st.lists(st.integers(0, _64), max_size=4), max_size=10), st.integers(0, (1 << 60) - 1))
def test_second_hashes_equal_the_plain_hash(keys: list[list[int]], secret: int) -> None:
    starts = np.cumsum([0, *map(len, keys)]).astype(np.int64)
    words = np.array([word for key in keys for word in key], np.uint64)
    out = np.empty(len(keys), np.uint64)
    key_set._second_hash(words, starts, secret, out)
    assert out.tolist() == [second_hash_of(key, secret) for key in keys]


PRINTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=8)


@given(st.lists(PRINTS, max_size=8))
def test_fingerprints_that_share_a_word_are_told_apart(steps: list[list[tuple[int, int]]]) -> None:
    table = np.zeros((16, 2), np.uint64)
    known: set[tuple[int, int]] = set()
    every = [(first, last) for first in range(3) for last in range(1, 4)]
    for prints in steps:
        words = np.array(prints, np.uint64).reshape(-1, 2)
        assert key_set._add(words, table) == len(set(prints) - known)
        known |= set(prints)
        found = np.empty(len(every), np.bool_)
        key_set._contains(np.array(every, np.uint64), table, found)
        assert {one for one, there in zip(every, found, strict=True) if there} == known
