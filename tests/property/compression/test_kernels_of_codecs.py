"""The kernels of compression equal plain Python, compiled or not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.compression import column_stats, decode, encode
from penstock.compression.abc import Cascade, UnfitError
from penstock.compression.arrow import offsets_and_bytes, to_streams
from penstock.compression.codecs import CODECS, decimals, decode_stream, encode_stream
from penstock.compression.codecs.decimals import digits_of
from penstock.compression.codecs.dictionary import codes_of, look_up
from penstock.compression.codecs.differences import divisor_of
from penstock.compression.kernels import bits
from penstock.compression.kernels.bits import SUB_BLOCK, Ints, Step
from penstock.compression.kernels.text import MAX_DISTINCT, are_equal, counts_of, offsets_of, texts_of
from penstock.errors import CorruptDataError
from tests.long_tests import examples
from tests.oracles.naive import packed_lanes, packed_run, runs_of, simple8b_words, variable_bytes
from tests.samples.coded import WIDTHS, streams, through_bytes

LOSSY: Cascade = ("quantized_0.125", "base_delta", "ns")


@pytest.mark.parametrize("width", WIDTHS)
@given(st.data())
def test_packed_bits_are_where_the_format_says(width: int, data: Any) -> None:
    count = data.draw(st.sampled_from([1, 5, 1023, SUB_BLOCK, SUB_BLOCK + 3]))
    bits_used = data.draw(st.integers(0, 8 * width - 1))
    values = (
        np.random.default_rng(count).integers(0, 1 << bits_used, count, dtype=np.uint64).astype(f"i{width}")
    )
    packed = bits.pack(values, Step.NONE, patched=False)
    expected = b""
    for block, w in enumerate(packed.widths.tolist()):
        part = values[block * SUB_BLOCK : (block + 1) * SUB_BLOCK].tolist()
        expected += packed_lanes(part, w) if len(part) == SUB_BLOCK else packed_run(part, w)
    assert packed.payload.tobytes() == expected


@settings(max_examples=examples(20))
@given(streams(), st.sampled_from(list(Step)), st.booleans())
def test_every_step_is_undone(values: Ints, step: Step, patched: bool) -> None:
    if values.size:
        out = np.empty_like(values)
        bits.unpack(bits.pack(values, step, patched=patched), out)
        np.testing.assert_array_equal(out, values)


@settings(max_examples=examples(20))
@given(streams())
def test_runs_and_words_are_those_of_plain_python(values: Ints) -> None:
    node = CODECS["run_length"].encode(values)
    heads, lengths = (decode_stream(child).tolist() for child in node.children)
    assert list(zip(heads, (length + 1 for length in lengths), strict=True)) == runs_of(values.tolist())
    np.testing.assert_array_equal(decode_stream(node), values)
    unsigned = values.view(f"u{values.dtype.itemsize}").tolist()
    node = CODECS["variable_byte"].encode(values)
    assert node.payload.tobytes() == variable_bytes(unsigned)
    np.testing.assert_array_equal(decode_stream(node), values)
    expected = simple8b_words(unsigned, SUB_BLOCK)
    if expected is None:
        with pytest.raises(UnfitError):
            CODECS["simple8b"].encode(values)
    else:
        node = CODECS["simple8b"].encode(values)
        assert node.payload.view(np.uint64).tolist() == expected
        np.testing.assert_array_equal(decode_stream(node), values)


@pytest.mark.parametrize("values", [np.array([-32768, 32767, 0, -1]), np.arange(-300, 20_000), np.arange(9)])
def test_many_narrow_values_have_the_dictionary_that_a_few_have(values: Any) -> None:
    values = np.resize(values, 40_000).astype(np.int16)
    distinct, place = np.unique(values, return_inverse=True)
    found = codes_of(values)
    assert found is not None
    np.testing.assert_array_equal(found[0], distinct)
    np.testing.assert_array_equal(found[1], place)
    assert found[1].dtype == np.min_scalar_type(-distinct.size)
    assert codes_of(values, int(distinct.size) - 1) is None


@given(streams())
def test_a_dictionary_has_the_distinct_values_in_order(values: Ints) -> None:
    found = codes_of(values)
    assert found is not None
    distinct, codes = found
    np.testing.assert_array_equal(distinct, np.unique(values))
    np.testing.assert_array_equal(look_up(codes, distinct), values)
    if distinct.size > 1:
        assert codes_of(values, int(distinct.size) - 1) is None
        with pytest.raises(CorruptDataError, match="no value in its dictionary"):
            look_up(codes, distinct[:-1])


@pytest.mark.parametrize("kind", ["f4", "f8"])
@given(st.data())
def test_lossy_floats_are_never_off_by_more_than_their_bound(kind: str, data: Any) -> None:
    floats = data.draw(
        hnp.arrays(kind, st.integers(0, 300), elements=st.floats(-1e6, 1e6, width=32 if kind == "f4" else 64))
    )
    floats[::40] = np.nan
    values = floats.view(f"i{kind[1]}")
    try:
        node = through_bytes(encode_stream(values, LOSSY))
    except UnfitError:
        return
    out = decode_stream(node).view(kind)
    same = out.view(values.dtype) == values
    error = np.abs(out.astype(np.float64) - floats.astype(np.float64))
    assert bool((same | (error <= 0.125)).all())


@pytest.mark.parametrize("digits", range(7))
def test_decimals_are_found_and_coded_without_exceptions(digits: int) -> None:
    floats = np.round(np.random.default_rng(digits).uniform(-1e5, 1e5, 300), digits)
    values = floats.view(np.int64)
    found = digits_of(values)
    assert found is not None
    assert found <= digits
    node = encode_stream(values, ("decimal", "base_delta", "ns"))
    assert node.children[1].count < values.size // 8
    np.testing.assert_array_equal(decode_stream(node), values)


def test_lengths_whose_sum_wraps_around_are_no_texts() -> None:
    wraps = np.array([2**62 + 100, 2**62 - 100, 2**62, 2**62])
    assert offsets_of(wraps, np.int32, 1 << 31) is None
    assert offsets_of(wraps, np.int64, (1 << 63) - 1) is None
    assert offsets_of(np.array([1, 2, 3]), np.int32, 6) is not None
    assert offsets_of(np.array([1, 2, 3]), np.int32, 5) is None


def test_statistics_say_what_the_values_are() -> None:
    stats = column_stats(pa.array([3, 3, 3, 5, 5, 9]))
    assert stats is not None
    assert (stats.rows, stats.least, stats.most, stats.runs, stats.distinct) == (6, 3, 9, 3, 3)
    assert (stats.range_bits, stats.delta_bits, stats.delta_of_delta_bits) == (3, 3, 3)
    assert (stats.ascending, stats.divisor, stats.digits) == (True, 2, None)
    assert stats.run_length == 2.0
    prices = column_stats(pa.array([1.25, 2.5, 3.0]))
    assert prices is not None
    assert prices.digits == 2
    assert column_stats(pa.array([], pa.int64())) is None
    assert column_stats(pa.nulls(4)) is None


@given(
    st.integers(0, 40).flatmap(
        lambda most: (
            st.lists(
                st.text("ab\u00e9", max_size=most) | st.text("ab", min_size=most, max_size=most),
                min_size=1,
                max_size=60,
            )
            | st.lists(st.text("ab", min_size=most, max_size=most), min_size=1, max_size=60)
        )
    ),
    st.integers(0, 3),
)
def test_a_dictionary_of_texts_has_each_once_in_the_order_in_which_they_appear(
    texts: list[str], cut: int
) -> None:
    array = pa.array(texts)[min(cut, len(texts) - 1) :]
    texts = array.to_pylist()
    codes, lengths, content = to_streams(array, dictionary=True).streams
    distinct = list(dict.fromkeys(texts))
    assert codes.tolist() == [distinct.index(text) for text in texts]
    assert lengths.tolist() == [len(text.encode()) for text in distinct]
    assert content.tobytes() == "".join(distinct).encode()
    for some in (codes, codes[1:]):
        counted = [some.tolist().count(code) for code in range(len(distinct))]
        assert counts_of(some, len(distinct)).tolist() == counted
    begins = np.concatenate([[0], np.cumsum(lengths)])
    written = texts_of(codes, begins, content.view(np.uint8), np.int32, 1 << 31)
    assert written is not None
    offsets, out = written
    assert offsets.tolist() == [0, *np.cumsum([len(text.encode()) for text in texts]).tolist()]
    assert out.tobytes() == "".join(texts).encode()
    moved = texts_of(codes, begins + 1, np.append(np.uint8(0), content.view(np.uint8)), np.int32, 1 << 31)
    assert moved is not None
    assert moved[1].tobytes() == out.tobytes()
    assert texts_of(codes, begins, content.view(np.uint8), np.int32, int(offsets[-1]) - 1) is None
    assert texts_of(codes - codes.dtype.type(1), begins, content.view(np.uint8), np.int32, 1 << 31) is None
    assert texts_of(codes, begins[:-1], content.view(np.uint8), np.int32, 1 << 31) is None


@given(
    st.lists(st.text("ab\u00e9", max_size=40), min_size=1, max_size=60),
    st.text("ab\u00e9", max_size=40),
    st.integers(0, 3),
)
def test_texts_are_compared_whole(texts: list[str], other: str, cut: int) -> None:
    array = pa.array(texts)[min(cut, len(texts) - 1) :]
    wanted = array.to_pylist()
    for text in {other, wanted[0], wanted[-1], wanted[0] + "a", wanted[-1][:-1], "", wanted[0][:-1] + "b"}:
        equal = are_equal(*offsets_and_bytes(array), text.encode())
        assert equal.tolist() == [one == text for one in wanted]


def test_many_distinct_texts_are_left_to_arrow() -> None:
    texts = pa.array([f"{n:06}" for n in range(MAX_DISTINCT + 1)])
    assert decode(encode(texts, "dictionary>base_delta>ns")).equals(texts)


@given(
    st.lists(st.integers(-(1 << 20), 1 << 20), min_size=1, max_size=50),
    st.integers(1, 1 << 30),
    st.integers(-(1 << 50), 1 << 50),
)
def test_a_divisor_is_the_greatest_of_all_differences(factors: list[int], divisor: int, first: int) -> None:
    values = np.array([first + factor * divisor for factor in factors], np.int64)
    expected = math.gcd(*((factor - factors[0]) * divisor for factor in factors))
    assert divisor_of(values) == (expected if len(factors) > 1 else 1)
    node = encode_stream(values, ("multiple", "plain")) if expected > 1 else None
    if node is not None:
        quotients = [(factor - factors[0]) * divisor // expected for factor in factors]
        assert decode_stream(node.children[0]).tolist() == quotients
        np.testing.assert_array_equal(decode_stream(node), values)


@given(st.lists(st.integers(-(2**31) + 65, 2**31 - 65), min_size=1, max_size=60), st.integers(0, 10))
def test_floats_of_integers_are_those_of_a_division(integers: list[int], digits: int) -> None:
    values = np.array(integers, np.int32)
    out, scratch = np.empty(values.size, np.float32), np.empty(1024)
    decimals._divide(values, 10.0**digits, scratch, out)
    np.testing.assert_array_equal(out, (values.astype(np.float64) / 10.0**digits).astype(np.float32))


def test_a_float_in_the_middle_of_two_is_rounded_as_a_division_rounds_it() -> None:
    # 2**24 + 1 tenths and the like: their quotients lie in the middle of two floats, or next to it.
    values = np.array([(2 * n + 1) * 10 for n in range(1 << 23, (1 << 23) + 1000)], np.int32)
    out, scratch = np.empty(values.size, np.float32), np.empty(1024)
    decimals._divide(values, 10.0, scratch, out)
    np.testing.assert_array_equal(out, (values / 10.0).astype(np.float32))
