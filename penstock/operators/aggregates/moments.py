"""M2, the sum of squared deviations from the mean, beside the count and the sum of the same values.

M2 of rows of several entries is the sum of their own, and what their means are apart (Chan, Golub, LeVeque:
Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979), so nothing large cancels.
Spark's own deviations are made the same way.

States of earlier versions have the sum of squares in its place, in a column of another name. They are read as
states with the M2 that follows from it, which has the error that these had.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.aggregates import moment_kernels
from penstock.operators.aggregates.wide import WIDE, as_floats, words_of
from penstock.operators.scan.spec import Partial

__all__ = ["beside", "means_of", "of_settings", "parts_of", "to_settings", "upgraded"]

_KIND: Final = "m2"
_EARLIER: Final = "sum_of_squares"

_Column: TypeAlias = "pa.Array[Any]"
_Floats: TypeAlias = npt.NDArray[np.float64]


def beside(partials: Iterable[Partial]) -> dict[str, tuple[str, str]]:
    """Return for each M2 the count and the sum of the same values; by names."""
    known = list(partials)
    names = {(one.kind, one.expression): one.name for one in known}
    return {
        one.name: (names["count", one.expression], names["sum", one.expression])
        for one in known
        if one.kind == _KIND
    }


def parts_of(values: pa.RecordBatch, m2: str, count: str, total: str) -> pa.StructArray:
    """Return an M2 with what it takes to add it to others: count, sum and M2."""
    columns = [values.column(name) for name in (count, total, m2)]
    return pa.StructArray.from_arrays(columns, ["count", "sum", _KIND])


def means_of(counts: npt.NDArray[np.int64], sums: _Column) -> tuple[npt.NDArray[np.int64], _Floats]:
    """Return the means of sums: whole numbers, and the rest; those of no values are anything."""
    if pa.types.is_floating(sums.type):
        return np.zeros(len(sums), np.int64), as_floats(sums) / np.maximum(counts, 1)
    lows, _ = words_of(sums)
    if sums.type != WIDE:
        wholes, rests = np.empty(len(lows), np.int64), np.empty(len(lows))
        moment_kernels.divide(lows, counts, wholes, rests)
        return wholes, rests
    divisors = np.maximum(counts, 1)
    # A mean is of 64 bits, and the guess is near it, so that the lower words tell what is left of the sum.
    guess = np.clip(as_floats(sums) / divisors, -(2.0**63), 2.0**63 - 1024).astype(np.int64)
    left = lows - guess * divisors
    more = left // divisors
    return guess + more, (left - more * divisors) / divisors


def to_settings(partial: Partial) -> list[Any]:
    """Return a partial as the settings of a checkpoint have it, which earlier versions read, too."""
    kind, name = partial.kind, partial.name
    if kind == _KIND:
        return [_EARLIER, partial.expression, _earlier(name)]
    return [kind, partial.expression, name, *([partial.log2_size] if partial.log2_size else [])]


def of_settings(stored: Sequence[Any]) -> Partial:
    """Return what `to_settings` was given."""
    kind, expression, name, *more = stored
    if kind == _EARLIER:
        return Partial(_KIND, expression, _KIND + name.removeprefix(_EARLIER))
    return Partial(kind, expression, name, *more)


def _earlier(name: str) -> str:
    return _EARLIER + name.removeprefix(_KIND)


def upgraded(entries: pa.RecordBatch, partials: Iterable[Partial]) -> pa.RecordBatch:
    """Return stored entries with M2 in place of the sums of squares of an earlier version."""
    for name, (count, total) in beside(partials).items():
        earlier = _earlier(name)
        there = {field.name: field.type for field in entries.schema}
        sums = there.get(total)
        if there.get(earlier) != pa.float64() or there.get(count) != pa.int64():
            continue
        if sums not in (pa.int64(), WIDE, pa.float64()):
            continue
        counts, squares = entries.column(count).fill_null(0).to_numpy(), entries.column(earlier)
        totals, known = as_floats(entries.column(total)), squares.fill_null(0.0).to_numpy()
        with np.errstate(invalid="ignore", over="ignore"):
            found = np.maximum(known - totals / np.maximum(counts, 1) * totals, 0.0)
        mask = squares.is_null().to_numpy(zero_copy_only=False)
        at = entries.schema.get_field_index(earlier)
        entries = entries.set_column(at, pa.field(name, pa.float64()), pa.array(found, mask=mask))
    return entries
