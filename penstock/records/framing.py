"""Read the frames that serializers for schema registries put before values; decode values in parts.

::

    0       1               5
    +-------+---------------+----------------------------------+----------
    | 0     | schema number | only Protobuf: count and indexes | value ...
    |       | big-endian    | zigzag varints; one 0 is [0]     |
    +-------+---------------+----------------------------------+----------

The indexes lead from the file to the message: ``[1, 0]`` is the first message inside the file's second
message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Frames", "Positions", "decode_in_parts", "read_frames"]

Positions: TypeAlias = npt.NDArray[np.int64]

_HEADER_BYTES: Final = 5
_MAX_INDEXES: Final = 32
"""The maximum nesting of messages. A value with more indexes is treated as a value without a frame."""


@dataclass(frozen=True, slots=True)
class Frames:
    """The positions of values in a buffer, and their schemas' numbers, which are -1 without a frame."""

    data: npt.NDArray[np.uint8]
    begins: Positions
    ends: Positions
    schemas: Positions
    paths: npt.NDArray[np.int64]
    """For Protobuf, each value's row has the indexes of its message, padded by -1. Other rows are empty."""

    @classmethod
    def of(cls, values: pa.Array) -> Frames:
        """Return the values of a column whose values have no frames."""
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
        places: Positions = ends.astype(np.int64)
        found = np.frombuffer(data or b"", np.uint8)
        return cls(found, places[:-1], places[1:], np.full(len(values), -1), _no_paths(values))

    def take(self, rows: npt.NDArray[Any]) -> pa.Array:
        """Return the values of some rows as a column, without their frames."""
        lengths = (self.ends - self.begins)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        # For each byte, its position in the data: the start of its value, plus its distance from there.
        at = np.repeat(self.begins[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.data[at])]
        return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def read_frames(values: pa.Array, *, indexes: bool) -> Frames:
    """Read the frames of a column's values, and find the values behind their frames.

    Parameters
    ----------
    values : pyarrow.BinaryArray
        The values with their frames. A null counts as a value without a frame.
    indexes : bool
        Whether each frame has the indexes of a Protobuf message.
    """
    whole = Frames.of(values)
    data, begins, ends = whole.data, whole.begins, whole.ends
    framed = ends - begins >= _HEADER_BYTES
    at = np.where(framed, begins, 0)
    padded = np.concatenate([data, np.zeros(_HEADER_BYTES, np.uint8)])
    framed &= padded[at] == 0
    numbers = np.zeros(len(values), np.int64)
    for place in range(1, _HEADER_BYTES):
        numbers = numbers << 8 | padded[at + place]
    positions = np.where(framed, begins + _HEADER_BYTES, ends)
    paths = _no_paths(values)
    if indexes:
        paths, positions, valid = _read_paths(data, positions, ends, framed)
        framed &= valid
    return Frames(data, positions, ends, np.where(framed, numbers, -1), paths)


def _no_paths(values: pa.Array) -> npt.NDArray[np.int64]:
    return np.zeros((len(values), 0), np.int64)


def _read_paths(
    data: npt.NDArray[np.uint8], positions: Positions, ends: Positions, framed: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], Positions, npt.NDArray[np.bool_]]:
    counts, positions, valid = _read_varints(data, positions, ends, framed)
    valid &= counts <= _MAX_INDEXES
    counts[~valid] = 0
    paths = np.full((len(counts), max(1, int(counts.max(initial=1)))), -1)
    paths[valid & (counts == 0), 0] = 0
    for place in range(int(counts.max(initial=0))):
        wanted = valid & (counts > place)
        found, positions, whole = _read_varints(data, positions, ends, wanted)
        paths[wanted, place] = found[wanted]
        valid &= whole | ~wanted
    return paths, positions, valid


def _read_varints(
    data: npt.NDArray[np.uint8], positions: Positions, ends: Positions, wanted: npt.NDArray[np.bool_]
) -> tuple[Positions, Positions, npt.NDArray[np.bool_]]:
    """Read a zigzag varint in each wanted row; return the numbers, the next positions, and the validity."""
    values, positions = np.zeros(len(positions), np.int64), positions.copy()
    reading, whole = wanted.copy(), np.zeros(len(positions), np.bool_)
    for shift in range(0, 35, 7):
        reading &= positions < ends
        here = np.flatnonzero(reading)
        found = data[positions[here]].astype(np.int64)
        values[here] |= (found & 0x7F) << shift
        positions[here] += 1
        last = here[found < 0x80]
        whole[last], reading[last] = True, False
    return values >> 1 ^ -(values & 1), positions, whole & (values & 1 == 0)


def decode_in_parts(
    rows: npt.NDArray[np.int64], decode: Callable[[npt.NDArray[np.int64]], Any]
) -> tuple[list[Any], list[npt.NDArray[np.int64]]]:
    """Return the decoded rows in parts, and the row numbers of each part. Undecodable rows are in no part.

    A decoder refuses a whole part because of one bad value, so the part is halved until the value is
    isolated.

    Parameters
    ----------
    rows : numpy.ndarray
        The numbers of the rows to decode.
    decode : callable
        A function that decodes some rows. It raises ``ValueError`` if it cannot decode one of them.
    """
    if not len(rows):
        return [], []
    try:
        return [decode(rows)], [rows]
    except ValueError:
        if len(rows) == 1:
            return [], []
    half = len(rows) // 2
    left, right = decode_in_parts(rows[:half], decode), decode_in_parts(rows[half:], decode)
    return left[0] + right[0], left[1] + right[1]
