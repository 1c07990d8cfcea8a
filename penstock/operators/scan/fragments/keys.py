"""Group columns as integers, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.compression.codecs.dictionary import look_up

__all__ = ["Codes", "bare_values", "integer_type"]

_NULL = -1


def integer_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the integer type that has the layout of `kind`; None if there is none."""
    if pa.types.is_signed_integer(kind):
        return kind
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind) or pa.types.is_time64(kind):
        return pa.int64()
    if pa.types.is_duration(kind):
        return pa.int64()
    return None


def bare_values(array: pa.Array[Any]) -> npt.NDArray[Any]:
    """Return an array's values without copying.

    The array has floats, or a type for which `integer_type` returns an integer type. Values of nulls are
    undefined.
    """
    kind = integer_type(array.type) or array.type
    values = array.view(kind)
    bare = pa.Array.from_buffers(kind, len(values), [None, values.buffers()[1]], offset=values.offset)
    return bare.to_numpy()


class Codes:
    """Numbers for the values of a group column. An integer is its own number; other values are numbered.

    Parameters
    ----------
    kind : pyarrow.DataType
        The column's type.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._known: dict[Any, int] = {}
        self._values: list[pa.Array[Any]] = []
        self.direct = integer_type(kind) is not None
        """True while each integer is its own number. This requires that no value is null."""

    def __len__(self) -> int:
        """Return the number of numbered values."""
        return len(self._known)

    def encode(self, array: pa.Array[Any]) -> npt.NDArray[Any]:
        """Return the number of each value. A null is -1, unless values are their own numbers."""
        if self.direct and not array.null_count:
            return bare_values(array)
        self._leave_direct()
        if pa.types.is_floating(array.type):
            # As in Spark, all zeros are one group and all NaNs are one group.
            array = pc.add(array, pa.scalar(0, array.type))
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        numbers = np.fromiter(map(self._number, _distinct(array.dictionary)), np.int64, len(array.dictionary))
        indices = array.indices
        codes = indices.fill_null(0).to_numpy(zero_copy_only=False)
        result = look_up(codes, numbers) if len(numbers) else np.zeros(len(array), np.int64)
        if indices.null_count:
            result[indices.is_null().to_numpy(zero_copy_only=False)] = _NULL
        return result

    def _leave_direct(self) -> None:
        self.direct = False

    def _number(self, value: Any) -> int:
        return self._known.setdefault(value, len(self._known))

    def values(self, codes: npt.NDArray[np.int64]) -> pa.Array[Any]:
        """Return the values of numbers."""
        if self.direct:
            whole = integer_type(self._kind)
            return pa.array(codes, pa.int64()).cast(whole).view(self._kind)
        dictionary = pa.array(list(map(_original, self._known)), integer_type(self._kind) or self._kind)
        return dictionary.view(self._kind).take(pa.array(codes, mask=codes == _NULL))


def _distinct(values: pa.Array[Any]) -> Any:
    # View dates and times as integers: Python has no year before 1 or after 9999, and no nanoseconds.
    whole = integer_type(values.type)
    return map(_hashable, (values if whole is None else values.view(whole)).to_pylist())


def _hashable(value: Any) -> Any:
    return ("nan",) if isinstance(value, float) and math.isnan(value) else value


def _original(value: Any) -> Any:
    return float("nan") if value == ("nan",) else value
