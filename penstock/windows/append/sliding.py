"""The assembly function: partials of windows from partials of panes (Scabbard §2.3)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregates import moment_kernels
from penstock.operators.aggregates.moments import deviation_sources, divide_sums
from penstock.operators.aggregates.own_states import unite_own
from penstock.operators.aggregates.quantiles import unite_images
from penstock.operators.aggregates.sketches import estimates
from penstock.operators.aggregates.wide import WIDE, from_words, to_words
from penstock.operators.scan.fragments import fragment_kernels
from penstock.operators.scan.fragments.accumulators import new_accumulator
from penstock.operators.scan.fragments.keys import bare_values, integer_type
from penstock.operators.scan.spec import Partial
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import KeyCodec
from penstock.windows.append import sliding_kernels

__all__ = ["partials_of_windows", "slide", "type_of_windows"]

_Column: TypeAlias = "pa.Array[Any]"


def slide(
    partials: Sequence[Partial],
    times: Mapping[str, str],
    panes: Integers,
    pane_partials: pa.RecordBatch,
    low: Integers,
    high: Integers,
    *,
    closing: bool,
    reads: Container[str] | None = None,
) -> pa.RecordBatch:
    """Combine the entries of each range into one row of partials.

    Sums of integers are computed as differences of running sums, which are exact. All other partials use two
    stacks, so floats are never subtracted. In both cases, the cost of a range does not depend on its length.

    Parameters
    ----------
    partials : sequence of Partial
        The partials of the entries.
    times : mapping of str to str
        Maps the name of a ``first`` or ``last`` partial to the name of the partial with its time.
    panes : int64 array of n
        Panes of the entries, which are sorted by group and pane.
    pane_partials : pyarrow.RecordBatch
        n rows with a column for each partial.
    low, high : int64 arrays of m
        The bounds of non-empty ranges. Within a group, both bounds increase.
    closing : bool
        Whether the ranges are windows, so that sets and sketches become their counts. If false, each entry is
        in exactly one range.
    reads : container of str, optional
        The partials to compute; all by default.

    Returns
    -------
    pyarrow.RecordBatch
        m rows: entries, or partials of windows (`type_of_windows`).
    """
    needed_partials = [partial for partial in partials if reads is None or partial.name in reads]
    deviations = deviation_sources(partials)
    columns = []
    for partial in needed_partials:
        column = pane_partials.column(partial.name)
        match partial.kind:
            case "distinct" if closing:
                columns.append(_count_distinct(column, low, high))
            case "sketch" if closing:
                columns.append(pa.array(estimates(column, low, high, partial.log2_size)))
            case "kll" if closing:
                columns.append(unite_images(column, low, high, partial.log2_size))
            case "own" if closing:
                columns.append(unite_own(column, low, high, partial.function))
            case "distinct" | "sketch" | "kll" | "own":
                united = replace(partial, kind="union") if partial.kind == "distinct" else partial
                accumulator = new_accumulator(united, column.type)
                accumulator.add(
                    np.repeat(np.arange(1, len(low) + 1), high - low), panes, column, len(low) + 1
                )
                columns.append(accumulator.result(len(low) + 1))
            case "count" | "sum":
                columns.append(_sum(column, low, high))
            case "m2":
                count, total = map(pane_partials.column, deviations[partial.name])
                columns.append(_deviations(count, total, column, low, high))
            case "min" | "max":
                columns.append(_extreme(column, partial.kind == "max", low, high))
            case "first" | "last":
                at = np.empty(len(low), np.int64)
                when = bare_values(pane_partials.column(times[partial.name])).astype(np.int64, copy=False)
                pick = sliding_kernels.slide_first if partial.kind == "first" else sliding_kernels.slide_last
                pick(panes, when, low, high, at)
                columns.append(column.take(pa.array(at)))
    return pa.RecordBatch.from_arrays(columns, [partial.name for partial in needed_partials])


def partials_of_windows(partials: Sequence[Partial], pane_partials: pa.RecordBatch) -> pa.RecordBatch:
    """Convert entries that cover whole windows: replace sets and theta sketches by their counts.

    Parameters
    ----------
    partials : sequence of Partial
        The partials among the columns of the entries.
    pane_partials : pyarrow.RecordBatch
        The entries to convert, one for each window.
    """
    kinds = {partial.name: partial for partial in partials if partial.kind in ("distinct", "sketch")}
    each = np.arange(pane_partials.num_rows)
    columns = []
    for name, column in zip(pane_partials.schema.names, pane_partials.columns, strict=True):
        partial = kinds.get(name)
        if partial is None:
            columns.append(column)
        elif partial.kind == "distinct":
            columns.append(pc.list_value_length(column).cast(pa.int64()))
        else:
            columns.append(pa.array(estimates(column, each, each + 1, partial.log2_size)))
    return pa.RecordBatch.from_arrays(columns, pane_partials.schema.names)


def type_of_windows(partial: Partial, kind: pa.DataType) -> pa.DataType:
    """Return the type that a partial has in a window, where sets and theta sketches are counts."""
    return pa.int64() if partial.kind in ("distinct", "sketch") else kind


def _have_values(column: _Column, low: Integers, high: Integers) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the ranges that have a value; None if all ranges have a value."""
    if not column.null_count:
        return None
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    running = _running_sum(valid.astype(np.int64))
    mask = running[high] > running[low]
    return None if mask.all() else mask


def _running_sum(values: Integers) -> Integers:
    running = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=running[1:])
    return running


def _numbers(column: _Column, null: Any) -> npt.NDArray[Any]:
    values = bare_values(column)
    if column.null_count:
        values = np.where(column.is_valid().to_numpy(zero_copy_only=False), values, values.dtype.type(null))
    return values


def _sum(column: _Column, low: Integers, high: Integers) -> _Column:
    mask = _have_values(column, low, high)
    if column.type == WIDE or (column.type == pa.int64() and _may_overflow(column)):
        filled = pc.fill_null(column, 0) if column.null_count else column
        running = np.empty((len(column) + 1, 2), np.int64)
        lows, highs = np.empty(len(low), np.int64), np.empty(len(low), np.int64)
        sliding_kernels.add_wide_ranges(*to_words(filled), low, high, running, lows, highs)
        return from_words(lows, highs, None if mask is None else ~mask)
    values = _numbers(column, 0)
    sums = np.empty(len(low), values.dtype)
    if values.dtype == np.int64:
        sliding_kernels.add_ranges(values, low, high, np.empty(len(values) + 1, np.int64), sums)
    else:
        sliding_kernels.slide_sum(values, low, high, np.empty(len(values), values.dtype), sums)
    return pa.array(sums, mask=None if mask is None else ~mask)


def _deviations(count: _Column, total: _Column, m2: _Column, low: Integers, high: Integers) -> _Column:
    mask = _have_values(m2, low, high)
    counts, suffix, result = bare_values(count), np.empty((len(m2), 3)), np.empty(len(low))
    moment_kernels.slide(counts, *divide_sums(counts, total), bare_values(m2), low, high, suffix, result)
    return pa.array(result, mask=None if mask is None else ~mask)


def _may_overflow(column: _Column) -> bool:
    """Return whether a sum of some or all of these integers may exceed 64 bits."""
    return bool((int(fragment_kernels.bound_of(bare_values(column))) + 1) * len(column) >= 1 << 63)


def _extreme(column: _Column, greatest: bool, low: Integers, high: Integers) -> _Column:
    mask = _have_values(column, low, high)
    kind = integer_type(column.type)
    if kind is None:
        null: Any = -np.inf if greatest else np.nan
    else:
        limits = np.iinfo(kind.to_pandas_dtype())
        null = limits.min if greatest else limits.max
    values = _numbers(column, null)
    at = np.empty(len(low), np.int64)
    sliding_kernels.slide_extreme(values, greatest, low, high, np.empty(len(values), np.int64), at)
    best = values[at]
    rows = pa.array(best, mask=None if mask is None else ~mask)
    return rows if rows.type == column.type else rows.view(column.type)


def _count_distinct(column: _Column, low: Integers, high: Integers) -> _Column:
    bounds = column.offsets.to_numpy().astype(np.int64)
    values = column.values.slice(bounds[0], bounds[-1] - bounds[0])
    index, bounds = KeyIndex(), bounds - bounds[0]
    numbers = index.find_or_add(KeyCodec([pa.field("value", values.type)]).encode([values]))
    counts = np.empty(len(low), np.int64)
    sliding_kernels.slide_distinct(numbers, bounds[low], bounds[high], np.zeros(len(index), np.int64), counts)
    return pa.array(counts)
