"""Every codec and cascade returns its input; kernels equal plain Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.compression.abc import Cascade, UnfitError
from penstock.compression.codecs import CODECS, decode_stream, encode_light, encode_stream
from penstock.compression.codecs.registry import cascade_of
from penstock.compression.kernels.bits import Ints
from penstock.errors import CorruptDataError, InvalidUsageError
from tests.long_tests import examples
from tests.samples.coded import streams, through_bytes

CASCADES: list[Cascade] = [
    *(tuple(name.split(">")) for name in CODECS if not name.startswith("decimal_")),
    ("decimal_2",),
    ("decimal", "delta", "ns"),
    ("decimal", "dictionary", "zstd"),
    ("delta", "delta", "base_delta", "variable_byte"),
    ("delta", "run_length"),
    ("delta", "zstd"),
    ("base_delta", "simple8b"),
    ("base_delta", "ns_words"),
    ("dictionary", "run_length", "delta", "ns"),
    ("dictionary", "zstd_9"),
    ("run_length", "dictionary", "lz4"),
    ("multiple", "delta", "ns"),
    ("xor", "lz4"),
]


@pytest.mark.parametrize("cascade", CASCADES, ids=">".join)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_a_cascade_gives_back_what_it_was_given(cascade: Cascade, data: Any) -> None:
    values = data.draw(streams())
    try:
        node = through_bytes(encode_stream(values, cascade))
    except UnfitError:
        return
    out = decode_stream(node, values.size)
    assert out.dtype == values.dtype
    np.testing.assert_array_equal(out, values)
    start = data.draw(st.integers(0, values.size))
    stop = data.draw(st.integers(start, values.size))
    np.testing.assert_array_equal(decode_stream(node, None, start, stop), values[start:stop])


@given(streams())
def test_what_codes_side_streams_gives_them_back_and_is_no_larger_than_plain(values: Ints) -> None:
    node = encode_light(values)
    np.testing.assert_array_equal(decode_stream(through_bytes(node)), values)
    # Judged by its first values, so it may be wrong about the rest, but not by more than the default is.
    most = max(CODECS["plain"].encode(values).size_bytes, CODECS["base_delta>ns"].encode(values).size_bytes)
    assert node.size_bytes <= most + 16


@pytest.mark.parametrize(
    "name", ["base_delta>ns", "delta>ns", "delta_of_delta>ns", "xor>ns", "ns", "plain", "lz4"]
)
@given(values=streams())
def test_these_codecs_hold_all_values(name: str, values: Ints) -> None:
    CODECS[name].encode(values)


def test_many_distinct_values_are_not_for_a_dictionary() -> None:
    with pytest.raises(UnfitError):
        CODECS["dictionary"].encode(np.arange(1 << 17))


@pytest.mark.parametrize(
    ("cascade", "text"),
    [
        (("zip",), "there is no such codec: codec=zip"),
        (("ns", "zstd"), "no codec can follow this one: codec=ns following=zstd"),
        (("quantized_-1",), "an error bound must be a positive number"),
        (("quantized_much",), "an error bound must be a positive number"),
    ],
)
def test_a_cascade_that_cannot_be_is_refused(cascade: Cascade, text: str) -> None:
    with pytest.raises(InvalidUsageError, match=text):
        encode_stream(np.arange(9.0).view(np.int64), cascade)


def test_more_exceptions_than_one_value_in_eight_do_not_fit() -> None:
    for name in ("decimal_2", "quantized_0.125"):
        floats = np.arange(800) / 4
        floats[::8] = np.nan
        encode_stream(floats.view(np.int64), (name, "plain"))
        floats[1] = np.nan
        with pytest.raises(UnfitError):
            encode_stream(floats.view(np.int64), (name, "plain"))


def test_an_exception_repeats_the_integer_before_it() -> None:
    floats = np.arange(100) / 4
    floats[[0, 50, 51]] = np.nan
    node = encode_stream(floats.view(np.int64), ("decimal_2", "plain"))
    integers = decode_stream(node.children[0]).tolist()
    assert [integers[0], *integers[49:53]] == [0, 1225, 1225, 1225, 1300]


@pytest.mark.parametrize("name", ["run_length", "decimal_2"])
def test_parts_that_are_more_than_the_values_are_refused_before_they_are_decoded(name: str) -> None:
    """A few bytes must not take the memory of many values."""
    node = CODECS[name].encode(np.repeat(np.arange(10.0), 10).view(np.int64))
    many = CODECS["constant"].encode(np.zeros(101, np.int64))
    children = [many, many] if name == "run_length" else [node.children[0], many, many]
    with pytest.raises(CorruptDataError, match=r"there are more (runs|exceptions) than values"):
        decode_stream(replace(node, children=children))


@pytest.mark.parametrize("positions", [[50, 9], [9, 9], [9, 100], [-1, 9]])
def test_positions_of_exceptions_ascend_within_their_stream(positions: list[int]) -> None:
    floats = np.arange(100) / 4
    floats[[9, 50]] = np.nan
    node = encode_stream(floats.view(np.int64), ("decimal_2", "plain"))
    integers, _, exceptions = node.children
    wrong = CODECS["plain"].encode(np.array(positions, np.int32))
    with pytest.raises(CorruptDataError, match="outside its stream"):
        decode_stream(replace(node, children=[integers, wrong, exceptions]))


def test_what_lies_beside_many_bytes_stays_as_it_is() -> None:
    steps = np.arange(0, 3000, 3)
    coded, plain = encode_light(steps), encode_light(steps, parent_bytes=128 * steps.nbytes)
    assert cascade_of(plain) == "plain"
    assert coded.size_bytes < plain.size_bytes
    assert decode_stream(coded).tolist() == decode_stream(plain).tolist() == steps.tolist()
