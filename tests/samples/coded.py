"""Streams that are hard to encode, and helpers of the tests of codecs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.compression.kernels.bits import SUB_BLOCK, Ints
from penstock.compression.node import Node, Reader

__all__ = ["WIDTHS", "streams", "through_bytes"]

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
    parts: list[Any] = []
    node.write(parts)
    out = b"".join(parts)
    assert len(out) == node.size_bytes
    reader = Reader(np.frombuffer(out, np.uint8), "here", 1 << 20)
    again = reader.node()
    assert reader.at_end
    return again
