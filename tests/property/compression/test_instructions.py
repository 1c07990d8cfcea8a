"""Compiled code with processor instructions equals plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from penstock._kernels import kernel
from penstock.compression.kernels.instructions import prefetch
from penstock.procedures.arithmetic import (
    INT64_MAX,
    INT64_MIN,
    add_overflows,
    multiply_overflows,
    subtract_overflows,
)

WORDS = (
    st.integers(INT64_MIN, INT64_MAX)
    | st.integers(-9, 9)
    | st.sampled_from([INT64_MIN, INT64_MAX, INT64_MIN + 1, 1 << 32])
)


@kernel
def _overflows(a: int, b: int) -> Any:
    return add_overflows(a, b), subtract_overflows(a, b), multiply_overflows(a, b)


@kernel
def _sum_with_prefetching(values: Any) -> Any:
    total = 0
    for i in range(values.shape[0]):
        prefetch(values, i + 8)  # beyond the end, too
        total += values[i]
    return total


@given(WORDS, WORDS)
@example(INT64_MIN, -1)
@example(-1, INT64_MIN)
@example(INT64_MAX, 1)
def test_an_operation_overflows_where_its_result_is_beyond_64_bits(a: int, b: int) -> None:
    expected = tuple(not INT64_MIN <= made <= INT64_MAX for made in (a + b, a - b, a * b))
    assert (add_overflows(a, b), subtract_overflows(a, b), multiply_overflows(a, b)) == expected
    assert tuple(map(bool, _overflows(a, b))) == expected


def test_prefetching_changes_nothing() -> None:
    for kind in (np.int64, np.int8, np.bool_):
        assert _sum_with_prefetching(np.ones(100, kind)) == 100
