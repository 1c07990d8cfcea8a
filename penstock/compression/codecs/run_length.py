"""Run-length encoding: store the value and the length of each run of equal values (Scabbard Table 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.compression.abc import check
from penstock.compression.codecs.differences import narrow
from penstock.compression.codecs.registry import Transform, decode_stream, encode_light, register
from penstock.compression.kernels.bits import Ints
from penstock.compression.kernels.integer_vectors import fill
from penstock.compression.node import Node, width_code

__all__ = ["RunLength"]


@kernel
def _find_runs(values: Ints, heads: Ints, lengths: Ints) -> int:
    """Write each run's value and length; return the number of runs. There is at least one value."""
    runs = 0
    begin = 0
    for i in range(1, values.shape[0]):
        if values[i] != values[i - 1]:
            heads[runs] = values[begin]
            lengths[runs] = i - begin
            runs += 1
            begin = i
    heads[runs] = values[begin]
    lengths[runs] = values.shape[0] - begin
    return runs + 1


@kernel
def _expand(heads: Ints, lengths: Ints, skip: int, out: Ints) -> None:
    """Expand runs into `out`, without the first `skip` values, until it is full."""
    at = 0
    left: Any = np.int64(skip)
    for run in range(heads.shape[0]):
        end = min(at + np.int64(lengths[run]) - left, out.shape[0])
        left = 0
        fill(out, at, end, heads[run])
        at = end


class RunLength(Transform):
    """Children: the values of runs, and the lengths of runs, each less one."""

    number = 7
    name = "run_length"

    def split(self, values: Ints) -> tuple[Ints, Callable[[Node], Node]]:
        """Return the runs' values."""
        heads, lengths = np.empty_like(values), np.empty(values.size, np.int32)
        runs = _find_runs(values, heads, lengths) if values.size else 0
        sizes = narrow(lengths[:runs] - np.int32(1))
        width, count = width_code(values), values.size
        return heads[:runs], lambda child: Node(
            self.number, width, count, children=[child, encode_light(sizes)]
        )

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the values; decode all lengths, but only the values of the runs in the range."""
        check(len(node.children) == 2, "runs have a wrong number of children")
        heads, lengths = node.children
        check(
            heads.width == node.width and heads.count == lengths.count,
            "the values and lengths of runs do not match",
        )
        check(lengths.count <= node.count, "there are more runs than values")
        sizes = decode_stream(lengths).astype(np.int64) + 1
        check(bool((sizes > 0).all()), "a run has an impossible length")
        ends = np.cumsum(sizes)
        check(
            int(ends[-1] if ends.size else 0) == node.count, "the lengths of runs do not match their stream"
        )
        out = np.empty(stop - start, node.dtype)
        if out.size:
            first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
            skip = start - int(ends[first] - sizes[first])
            values = decode_stream(heads, None, first, last + 1)
            _expand(values, sizes[first : last + 1], skip, out)
        return out


register(RunLength())
