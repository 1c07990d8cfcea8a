"""M2, the sum of squared deviations from the mean, stored with the count and sum of the same values.

The M2 of combined entries is the sum of their M2 values, plus a term for the distance between their means
(Chan, Golub, LeVeque: Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979). This
never subtracts two large numbers. Spark computes deviations in the same way.

States of earlier versions hold the sum of squares instead, in a column with a different name. A reader
converts this sum to M2. The M2 then keeps the rounding error of the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.aggregates import moment_kernels
from penstock.operators.aggregates.wide import WIDE, as_floats, to_words
from penstock.operators.scan.spec import Partial

__all__ = [
    "deviation_columns",
    "deviation_sources",
    "divide_sums",
    "from_settings",
    "spell_as_before",
    "to_settings",
    "upgrade_partials",
]

_KIND: Final = "m2"
_EARLIER: Final = "sum_of_squares"

_Column: TypeAlias = "pa.Array[Any]"
_Floats: TypeAlias = npt.NDArray[np.float64]


def deviation_sources(partials: Iterable[Partial]) -> dict[str, tuple[str, str]]:
    """Map the name of each M2 to the names of its count and sum."""
    all_partials = list(partials)
    names = {(partial.kind, partial.expression): partial.name for partial in all_partials}
    return {
        partial.name: (names["count", partial.expression], names["sum", partial.expression])
        for partial in all_partials
        if partial.kind == _KIND
    }


def deviation_columns(values: pa.RecordBatch, m2: str, count: str, total: str) -> pa.StructArray:
    """Return the columns needed to combine an M2: count, sum and M2."""
    columns = [values.column(name) for name in (count, total, m2)]
    return pa.StructArray.from_arrays(columns, ["count", "sum", _KIND])


def divide_sums(counts: npt.NDArray[np.int64], sums: _Column) -> tuple[npt.NDArray[np.int64], _Floats]:
    """Return means as whole numbers and fractions. A mean is undefined if its count is zero."""
    if pa.types.is_floating(sums.type):
        return np.zeros(len(sums), np.int64), as_floats(sums) / np.maximum(counts, 1)
    lows, _ = to_words(sums)
    if sums.type != WIDE:
        wholes, rests = np.empty(len(lows), np.int64), np.empty(len(lows))
        moment_kernels.divide(lows, counts, wholes, rests)
        return wholes, rests
    divisors = np.maximum(counts, 1)
    # A mean fits 64 bits and the guess is near the mean, so the remainder fits into the lower words.
    guess = np.clip(as_floats(sums) / divisors, -(2.0**63), 2.0**63 - 1024).astype(np.int64)
    left = lows - guess * divisors
    more = left // divisors
    return guess + more, (left - more * divisors) / divisors


def to_settings(partial: Partial) -> list[Any]:
    """Convert a partial to checkpoint settings, in a form that earlier versions also read."""
    kind, name = partial.kind, partial.name
    if kind == _KIND:
        return [_EARLIER, partial.expression, _earlier(name)]
    if partial.function:
        return [kind, partial.expression, name, 0, partial.function]
    return [kind, partial.expression, name, *([partial.log2_size] if partial.log2_size else [])]


def spell_as_before(text: str, partials: Iterable[Partial]) -> str:
    """Rewrite a text with the names that checkpoints of earlier versions use for partials."""
    all_partials = list(partials)
    sources = deviation_sources(all_partials)
    for partial in all_partials:
        if partial.kind != _KIND:
            continue
        (count, total), squares = sources[partial.name], _earlier(partial.name)
        m2 = f"GREATEST({squares} - CAST({total} AS DOUBLE) * {total} / {count}, CAST(0.0 AS DOUBLE))"
        text = text.replace(f"{_KIND}({partial.expression})", f"{_EARLIER}({partial.expression})")
        text = text.replace(f"SQRT({partial.name} / ", f"SQRT({m2} / ")
    return text


def from_settings(stored: Sequence[Any]) -> Partial:
    """Convert checkpoint settings back to a partial."""
    kind, expression, name, *more = stored
    if kind == _EARLIER:
        return Partial(_KIND, expression, _KIND + name.removeprefix(_EARLIER))
    return Partial(kind, expression, name, *more)


def _earlier(name: str) -> str:
    return _EARLIER + name.removeprefix(_KIND)


def upgrade_partials(entries: pa.RecordBatch, partials: Iterable[Partial]) -> pa.RecordBatch:
    """Convert the sums of squares in entries of an earlier version to M2."""
    for name, (count, total) in deviation_sources(partials).items():
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
            m2 = np.maximum(known - totals / np.maximum(counts, 1) * totals, 0.0)
        mask = squares.is_null().to_numpy(zero_copy_only=False)
        at = entries.schema.get_field_index(earlier)
        entries = entries.set_column(at, pa.field(name, pa.float64()), pa.array(m2, mask=mask))
    return entries
