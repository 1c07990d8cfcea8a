"""Kernels that Penstock lowers to machine code itself do what Python does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

from penstock._clock import new_id
from penstock._kernels import load_generated
from penstock.errors import InternalError
from tests.transactions.procedures import interpreted_source

_HEAD = """import numpy as np

from penstock.procedures.arithmetic import INT64_MIN, add_overflows
from penstock.procedures.index_kernels import find_1, put_entry
from penstock.procedures.machine_code.kernel import generated_kernel as kernel

@kernel
"""
_EVERYTHING = '''def run(begin, end, a, small, facts, floats, flags, table):
    """Use every construct of generated kernels."""
    total = 0
    last = -1
    for i in range(begin, end):
        last = i
        if i == 3:
            continue
        elif i == 9 or a[0] == 7 and a[i] > 0:
            break
        else:
            pass
        table[i, 1] = table[i, 0] = i * 2
        small[i] = a[i] & 127
        total += small[i] if flags[i] else -a[i]
    for j in range(a[4], a[5], a[6]):
        total ^= j
        if total == 77:
            break
    k = 0
    while True:
        while k < 5:
            k += 1
            if k == 2:
                continue
            total ^= k
        if not add_overflows(total, a[7]):
            total += a[7]
        break
    x = np.float64(total) / 7
    floats[0] = x if x <= np.inf else np.nan
    floats[1] = np.float64(np.float32(x))
    flags[0] = 0 < total < 100 or (x != x)
    flags[1] = find_1(facts, 58, np.int64(4)) >= 0
    put_entry(facts, 58, 4, total & 63)
    flags[2] = total == INT64_MIN or flags[1]
    rest = total % 1000 - 500
    facts[1] = rest // 3 + rest % 5 + abs(rest) + min(rest, 4) + max(k, 3) + a.shape[0] + 5 * table.shape[1]
    if total > 1 << 40:
        return last
    return total
'''
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_BOUNDS = [
    (0, 4, 1),
    (4, 0, -2),
    (_INT64_MIN, _INT64_MAX, 1 << 62),
    (_INT64_MAX, _INT64_MIN, -(1 << 62)),
    (_INT64_MAX - 1, _INT64_MAX, 2),
    (3, 3, 3 << 61),
]


def _load(source: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a kernel as machine code, and the same in Python."""
    text = _HEAD + source.replace("1 << 40", str(1 << 40))
    return load_generated(f"machine_code_{new_id()}", text).run, interpreted_source(text)


def _arguments(bounds: tuple[int, int, int], seed: int) -> list[Any]:
    draw = np.random.default_rng(seed)
    a = draw.integers(-9, 9, 12)
    a[0] = (7, 1)[seed % 2]
    a[4:7] = bounds
    a[7] = (_INT64_MAX, 5, _INT64_MIN)[seed % 3]
    table = np.zeros((12, 3), np.int64)
    flags = draw.integers(0, 2, 12).astype(np.bool_)
    return [a, np.zeros(12, np.int8), np.zeros(128, np.int64), np.zeros(2), flags, table]


def test_machine_code_does_what_python_does() -> None:
    compiled, plain = _load(_EVERYTHING)
    for bounds, (seed, end) in itertools.product(_BOUNDS, enumerate((0, 3, 12, 5))):
        mine, theirs = _arguments(bounds, seed), _arguments(bounds, seed)
        assert compiled(0, end, *mine) == plain(0, end, *theirs)
        for own, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(own, other)


def test_a_function_without_a_result_returns_none() -> None:
    compiled, _ = _load("def run(x, a):\n    if x < 0:\n        return\n    a[x] = x\n")
    values = np.zeros(3, np.int64)
    assert compiled(-1, values) is None
    assert compiled(2, values) is None
    assert values.tolist() == [0, 0, 2]


_SETS = """def run(n, rounds):
    total = 0
    for i in range(rounds):
        s = set()
        for j in range(n):
            if np.int64(j % 5) not in s:
                total += 100
            s.add(np.int64(j % 7))
            if i == 1 and j == 30:
                return total
        other = set()
        if i > 0:
            other.add(np.int64(i))
        total += len(s) + len(other) + (1 if 3 in s else 0)
    return total
"""


def test_sets_are_those_of_python_and_release_their_memory() -> None:
    compiled, plain = _load(_SETS)
    for n, rounds in ((0, 2), (4, 3), (20, 1), (40, 3)):
        assert compiled(n, rounds) == plain(n, rounds)
    _nrt_python.memsys_enable_stats()
    try:
        before = rtsys.get_allocation_stats()
        for n, rounds in ((4, 3), (40, 3)):
            compiled(n, rounds)
        after = rtsys.get_allocation_stats()
    finally:
        _nrt_python.memsys_disable_stats()
    assert after.alloc > before.alloc
    assert after.alloc - before.alloc == after.free - before.free


@pytest.mark.parametrize("line", ["return [x]", "a[x] = x @ x", "return a[x:][0]", "with a:\n        pass"])
def test_an_unknown_construct_is_an_error(line: str) -> None:
    compiled, _ = _load(f"def run(x, a):\n    {line}\n")
    with pytest.raises(InternalError, match="unknown construct"):
        compiled(0, np.zeros(3, np.int64))


def test_an_array_that_is_not_contiguous_is_refused() -> None:
    compiled, _ = _load("def run(a):\n    return a[0]\n")
    with pytest.raises(InternalError, match="contiguous"):
        compiled(np.zeros(6, np.int64)[::2])
