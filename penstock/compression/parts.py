"""The payload of codecs that cut a stream into independently encoded parts of a fixed number of values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.compression.abc import check
from penstock.compression.codecs.registry import decode_stream
from penstock.compression.node import Node

__all__ = ["Parts", "ends_of", "parts_of"]


class Parts(NamedTuple):
    """The range of parts that hold the requested values, and the payload offsets of all parts."""

    first: int
    last: int
    ends: npt.NDArray[np.int64]


def ends_of(sizes: npt.NDArray[np.int64], size_bytes: int) -> npt.NDArray[np.int64]:
    """Return the offsets of parts of these sizes, including the end of the last part.

    Raises
    ------
    CorruptDataError
        If the parts do not fill `size_bytes`.
    """
    check(bool((sizes >= 0).all()), "a part has a negative size")
    ends = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    check(ends[-1] == size_bytes, "a payload has another size than its parts")
    return ends


def parts_of(node: Node, start: int, stop: int, values: int) -> Parts:
    """Return the parts, of `values` values each, that hold a range of a node's stream.

    The node's only child holds the size of each part.

    Raises
    ------
    CorruptDataError
        If the sizes do not add up to the size of the payload.
    """
    check(len(node.children) == 1, "a stream has no sizes of its parts")
    sizes = decode_stream(node.children[0], -(-node.count // values)).astype(np.int64)
    return Parts(start // values, -(-stop // values), ends_of(sizes, node.payload.size))
