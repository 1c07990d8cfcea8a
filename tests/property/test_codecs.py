"""Every codec and cascade gives back what it was given; kernels do what plain Python does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.compression import bits
from penstock.compression.abc import Cascade, UnfitError
from penstock.compression.bits import SUB_BLOCK, Ints, Step
from penstock.compression.codecs import CODECS, decode_stream, encode_light, encode_stream
from penstock.compression.codecs.decimals import digits_of
from penstock.compression.codecs.dictionary import codes_of, look_up
from penstock.compression.node import Node, Reader
from penstock.errors import CorruptDataError, InvalidUsageError
from tests.naive import packed_lanes, packed_run

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
LOSSY: Cascade = ("quantized_0.125", "base_delta", "ns")
WIDTHS = (1, 2, 4, 8)
SPECIAL = [
    0.0,
    -0.0,
    np.nan,
    -np.nan,
    np.inf,
    -np.inf,
    5e-324,
    -5e-324,
    1e-310,
    1.7976931348623157e308,
    0.1,
    1 / 3,
]


@st.composite
def streams(draw: st.DrawFn) -> Ints:
    """Draw streams that are hard in their own ways, some longer than a sub-block."""
    width = draw(st.sampled_from(WIDTHS))
    dtype = np.dtype(f"i{width}")
    info = np.iinfo(dtype)
    size = draw(st.sampled_from([0, 1, 2, 3, 17, SUB_BLOCK - 1, SUB_BLOCK, SUB_BLOCK + 1, 2 * SUB_BLOCK + 5]))
    shape = draw(st.sampled_from(["any", "extremes", "small", "ascending", "runs", "floats", "outliers"]))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    if shape == "any":
        few = draw(hnp.arrays(dtype, st.integers(0, 20)))
        return few if size < 20 else np.resize(few, size if few.size else 0)
    if shape == "extremes":
        return generator.choice(np.array([info.min, -1, 0, 1, info.max], dtype), size)
    if shape == "small":
        return generator.integers(0, 10, size).astype(dtype)
    if shape == "ascending":
        with np.errstate(over="ignore"):
            return np.cumsum(generator.integers(0, 5, size)).astype(dtype) + dtype.type(
                draw(st.integers(-9, 9))
            )
    if shape == "runs":
        return np.repeat(generator.integers(info.min, info.max, size), generator.integers(1, 9, size))[
            :size
        ].astype(dtype)
    if shape == "outliers":
        values = generator.integers(0, 100, size).astype(dtype)
        values[::50] = info.max
        return values
    if width < 4:
        return generator.integers(info.min, info.max, size, dtype)
    kind = f"f{width}"
    decimals = np.round(generator.normal(0, 100, size), draw(st.integers(0, 4)))
    special = generator.choice(np.array(SPECIAL), size)
    with np.errstate(over="ignore"):
        return np.where(generator.random(size) < 0.1, special, decimals).astype(kind).view(dtype)


def through_bytes(node: Node) -> Node:
    """Return the node that the bytes of `node` are read as."""
    out = bytearray()
    node.write(out)
    assert len(out) == node.size_bytes
    reader = Reader(np.frombuffer(bytes(out), np.uint8), "here", 1 << 20)
    again = reader.node()
    assert reader.at_end
    return again


@pytest.mark.parametrize("cascade", CASCADES, ids=">".join)
@settings(max_examples=30)
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
    floats = np.round(np.random.default_rng(digits).uniform(-1e5, 1e5, 5000), digits)
    values = floats.view(np.int64)
    found = digits_of(values)
    assert found is not None
    assert found <= digits
    node = encode_stream(values, ("decimal", "base_delta", "ns"))
    assert node.children[1].count < values.size // 8
    np.testing.assert_array_equal(decode_stream(node), values)


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
