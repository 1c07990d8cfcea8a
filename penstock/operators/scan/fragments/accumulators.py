"""Accumulators of the partial aggregates of fragments."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InternalError, InvalidUsageError
from penstock.operators.aggregates import moment_kernels
from penstock.operators.aggregates.moments import divide_sums
from penstock.operators.aggregates.own import takes_values
from penstock.operators.aggregates.own_states import OwnStates
from penstock.operators.aggregates.quantiles import QuantileSketches
from penstock.operators.aggregates.sketches import hashes_in, hashes_of, images_of, least_hashes
from penstock.operators.aggregates.wide import WIDE, from_words, to_words
from penstock.operators.scan.fragments import fragment_kernels
from penstock.operators.scan.fragments.keys import bare_values, integer_type
from penstock.operators.scan.spec import Partial
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import KeyCodec

__all__ = ["Accumulator", "Nulls", "Row", "SlotRuns", "new_accumulator", "skip_nulls"]

_INITIAL_SLOTS = 1024
_BEYOND = 1 << 63
_MIN_HASHES_TO_REDUCE = 1 << 16
_NO_THETA = np.uint64(2**63 - 1)

Slots = npt.NDArray[np.int32]
Column: TypeAlias = "pa.Array[Any]"


class SlotRuns(NamedTuple):
    """Runs of consecutive rows with the same slot: their starts, their slots, and the number of rows."""

    starts: npt.NDArray[np.int64]
    slots: Slots
    rows: int

    def spread(self) -> Slots:
        """Return the slot of each row."""
        return np.repeat(self.slots, np.diff(self.starts, append=self.rows))


class Accumulator(Protocol):
    """A partial aggregate, with a value for each slot."""

    def add(self, slots: Slots, times: npt.NDArray[Any], values: Column | None, count: int) -> None:
        """Add rows to their slots. There are `count` slots, slot 0 included."""

    def add_runs(self, runs: SlotRuns, values: Column | None, count: int) -> bool:
        """Add rows by runs if that is faster; return whether they were added."""

    def result(self, count: int) -> Column:
        """Return the partials of slots 1 to `count` - 1."""


def new_accumulator(partial: Partial, kind: pa.DataType) -> Accumulator:
    """Create the accumulator of a partial with values of type `kind`. The partial is not a count.

    Raises
    ------
    InvalidUsageError
        If the partial does not support the type.
    """
    if partial.kind in ("first", "last"):
        return Row(kind, last=partial.kind == "last")
    if partial.kind == "distinct" and not pa.types.is_nested(kind):
        return _Distinct(kind)
    if partial.kind == "union":
        return _Distinct(kind.value_type, of_lists=True)
    if partial.kind == "sketch":
        return _Sketch(kind, partial.log2_size)
    number = pa.types.is_signed_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if partial.kind == "own" and (pa.types.is_binary(kind) or takes_values(partial.function, kind)):
        return OwnStates(kind, partial.function)
    if partial.kind == "kll" and (number or pa.types.is_binary(kind)):
        return _Quantiles(kind, partial.log2_size)
    if partial.kind in ("min", "max") and (number or integer_type(kind) is not None):
        return _Extreme(kind, greatest=partial.kind == "max")
    whole = pa.types.is_signed_integer(kind) or (partial.kind == "add" and kind == WIDE)
    if partial.kind in ("sum", "add") and (whole or number):
        return _WholeSum() if whole else _Sum()
    if partial.kind == "m2" and number:
        return _Deviations(kind)
    if partial.kind == "add_m2":
        return _AddedDeviations()
    raise InvalidUsageError(
        "windows cannot aggregate a column of this type",
        hint="cast decimals to DOUBLE; sum, quantiles, own take integers and floats; "
        "min and max also dates and times; count(DISTINCT x) takes types that are not nested; first and last "
        "take any type",
        kind=partial.kind,
        type=str(kind),
        expression=partial.expression,
    )


def _require(values: Column | None) -> Column:
    """Return values; refuse None, which only ``count(*)`` has."""
    if values is None:
        raise InternalError("a partial aggregate has no values")
    return values


def _grow(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    if count <= len(array):
        return array
    larger = np.zeros((max(count, 2 * len(array)), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def skip_nulls(slots: Slots, values: Column) -> Slots:
    """Return the slots of rows, 0 for nulls."""
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), slots, np.int32(0))


class Nulls:
    """Count the nulls of each slot; the caller subtracts them from the number of rows."""

    def __init__(self) -> None:
        self._counts = np.zeros(1, np.int64)

    def add(self, slots: Slots, times: npt.NDArray[Any], values: Column | None, count: int) -> None:
        """Add rows to their slots; see `Accumulator.add`."""
        if values is None or not values.null_count:
            return
        self._counts = _grow(self._counts, count)
        fragment_kernels.add_count(
            np.where(values.is_null().to_numpy(zero_copy_only=False), slots, 0), self._counts
        )

    def add_runs(self, runs: SlotRuns, values: Column | None, count: int) -> bool:
        """Add rows without nulls; see `Accumulator.add_runs`."""
        return values is None or not values.null_count

    def result(self, count: int) -> Column:
        """Return the number of nulls; see `Accumulator.result`."""
        return pa.array(_grow(self._counts, count)[1:count])


class _Sum:
    """Sums of floats. Until the first null, every slot has a value, and `_seen` is None."""

    _sums: npt.NDArray[Any]

    def __init__(self) -> None:
        self._sums = np.zeros(_INITIAL_SLOTS, np.float64)
        self._seen: npt.NDArray[np.bool_] | None = None
        self._slots = 1

    def add(self, slots: Slots, times: npt.NDArray[Any], values: Column | None, count: int) -> None:
        values = _require(values)
        self._sums = _grow(self._sums, count)
        if values.null_count:
            slots = skip_nulls(slots, values)
            if self._seen is None:
                self._seen = np.zeros(count, np.bool_)
                self._seen[: self._slots] = True
        if self._seen is not None:
            self._seen = _grow(self._seen, count)
            fragment_kernels.mark(slots, self._seen)
        self._add(slots, values, count)
        self._slots = count

    def _add(self, slots: Slots, values: Column, count: int) -> None:
        fragment_kernels.add_sum(slots, bare_values(values), self._sums)

    def add_runs(self, runs: SlotRuns, values: Column | None, count: int) -> bool:
        values = _require(values)
        if values.null_count or self._seen is not None:
            return False
        self._sums = _grow(self._sums, count)
        if not self._add_runs(runs, values):
            return False
        self._slots = count
        return True

    def _add_runs(self, runs: SlotRuns, values: Column) -> bool:
        fragment_kernels.add_sum_of_runs(runs.starts, runs.slots, bare_values(values), self._sums)
        return True

    def _mask(self, count: int) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the slots without a value; None if every slot has a value."""
        return None if self._seen is None else ~_grow(self._seen, count)[1:count]

    def result(self, count: int) -> Column:
        return pa.array(_grow(self._sums, count)[1:count], mask=self._mask(count))


class _WholeSum(_Sum):
    """Sums of integers. Once any sum might exceed 64 bits, all sums have two words."""

    def __init__(self) -> None:
        super().__init__()
        self._sums = np.zeros(_INITIAL_SLOTS, np.int64)
        self._highs: npt.NDArray[np.int64] | None = None
        """The upper words; None while no sum can exceed 64 bits."""
        self._bound = 0
        """Upper bound of the absolute value of every sum."""

    def _add(self, slots: Slots, values: Column, count: int) -> None:
        if self._stays_narrow(values):
            fragment_kernels.add_sum(slots, bare_values(values), self._sums)
            return
        if self._highs is None:
            self._highs = self._sums >> 63
        self._highs = _grow(self._highs, len(self._sums))
        if values.type == WIDE:
            fragment_kernels.add_wide_sums(slots, *to_words(values), self._sums, self._highs)
        else:
            fragment_kernels.add_wide_sum(slots, bare_values(values), self._sums, self._highs)

    def _add_runs(self, runs: SlotRuns, values: Column) -> bool:
        if not self._stays_narrow(values):
            return False
        fragment_kernels.add_whole_of_runs(runs.starts, runs.slots, bare_values(values), self._sums)
        return True

    def _stays_narrow(self, values: Column) -> bool:
        """Return whether every sum fits 64 bits even if all these values go to one slot."""
        if self._highs is not None or values.type == WIDE:
            return False
        most = len(values) * (int(fragment_kernels.bound_of(bare_values(values))) + 1)
        if self._bound + most >= _BEYOND:
            self._bound = int(fragment_kernels.bound_of(self._sums)) + 1
        if self._bound + most >= _BEYOND:
            return False
        self._bound += most
        return True

    def result(self, count: int) -> Column:
        lows, mask = _grow(self._sums, count)[1:count], self._mask(count)
        if self._highs is None:
            return pa.array(lows, mask=mask)
        return from_words(lows, _grow(self._highs, count)[1:count], mask)


class _Deviations:
    """Sums of squared deviations from the mean; see `penstock.operators.aggregates.moment_kernels`."""

    def __init__(self, kind: pa.DataType) -> None:
        self._large = kind == pa.int64()
        self._moments = np.zeros((_INITIAL_SLOTS, 4))

    def add(self, slots: Slots, times: npt.NDArray[Any], values: Column | None, count: int) -> None:
        values = _require(values)
        self._moments = _grow(self._moments, count)
        if values.null_count:
            slots = skip_nulls(slots, values)
        if self._large:
            moment_kernels.add_integers(
                slots, bare_values(values), self._moments, self._moments.view(np.int64)
            )
        else:
            moment_kernels.add_floats(slots, bare_values(values), self._moments)

    def add_runs(self, runs: SlotRuns, values: Column | None, count: int) -> bool:
        return False

    def result(self, count: int) -> Column:
        moments = _grow(self._moments, count)[1:count]
        m2 = np.empty(len(moments))
        moment_kernels.finish(moments, m2)
        none = moments[:, 1] == 0.0
        return pa.array(m2, mask=none if none.any() else None)


class _AddedDeviations(_Deviations):
    """Combined M2 values; each input has count, sum and M2."""

    def __init__(self) -> None:
        super().__init__(pa.float64())
        self._centers = np.zeros(_INITIAL_SLOTS, np.int64)

    def add(self, slots: Slots, times: npt.NDArray[Any], values: Column | None, count: int) -> None:
        counts, sums, deviations = _require(values).flatten()
        self._moments, self._centers = _grow(self._moments, count), _grow(self._centers, count)
        numbers = bare_values(counts)
        means = divide_sums(numbers, sums)
        moment_kernels.add_partials(
            slots, numbers, *means, bare_values(deviations), self._moments, self._centers
        )


class _Extreme:
    def __init__(self, kind: pa.DataType, *, greatest: bool) -> None:
        self._kind, self._seen_as = kind, integer_type(kind) or kind
        self._best = np.zeros(_INITIAL_SLOTS, self._seen_as.to_pandas_dtype())
        self._seen = np.zeros(_INITIAL_SLOTS, np.bool_)
        self._kernel = fragment_kernels.keep_greater if greatest else fragment_kernels.keep_less

    def add(self, slots: Slots, times: npt.NDArray[Any], values: Column | None, count: int) -> None:
        values = _require(values)
        self._best, self._seen = _grow(self._best, count), _grow(self._seen, count)
        if values.null_count:
            slots = skip_nulls(slots, values)
        self._kernel(slots, bare_values(values), self._seen, self._best)

    def add_runs(self, runs: SlotRuns, values: Column | None, count: int) -> bool:
        return False

    def result(self, count: int) -> Column:
        seen = _grow(self._seen, count)[1:count]
        best = pa.array(_grow(self._best, count)[1:count], mask=None if seen.all() else ~seen)
        return best if best.type == self._kind else best.view(self._kind)


class Row:
    """The value of the first or last row of each slot. Replaced values stay in memory until `result`."""

    def __init__(self, kind: pa.DataType, *, last: bool) -> None:
        self._kind, self._last = kind, last
        self.times = np.zeros(_INITIAL_SLOTS, np.int64)
        """Time of each slot's row."""
        self._rows = np.full(_INITIAL_SLOTS, -1, np.int64)
        self._kept: list[Column] = []
        self._count = 0

    def add(self, slots: Slots, times: npt.NDArray[Any], values: Column | None, count: int) -> None:
        """Add rows to their slots; see `Accumulator.add`."""
        values = _require(values)
        size = len(self._rows)
        self.times, self._rows = _grow(self.times, count), _grow(self._rows, count)
        self._rows[size:] = -1
        fragment_kernels.keep_row(slots, times, self._last, self._count, self.times, self._rows)
        used = slots[slots > 0]
        if not used.size:
            return
        low = int(used.min())
        slots_with_rows = low + np.flatnonzero(self._rows[low:count] >= self._count)
        self._kept.append(values.take(pa.array(self._rows[slots_with_rows] - self._count)))
        self._rows[slots_with_rows] = self._count + np.arange(len(slots_with_rows))
        self._count += len(slots_with_rows)

    def add_runs(self, runs: SlotRuns, values: Column | None, count: int) -> bool:
        """Return False, so that `add` adds the rows; see `Accumulator.add_runs`."""
        return False

    def result(self, count: int) -> Column:
        """Return the partials; see `Accumulator.result`."""
        there = pa.array(self._rows[1:count])
        return pa.concat_arrays(self._kept).take(there) if count > 1 else pa.array([], self._kind)


class _Distinct:
    """The distinct values of each slot in order of first appearance; lists of values are united."""

    def __init__(self, kind: pa.DataType, *, of_lists: bool = False) -> None:
        self._of_lists = of_lists
        self._codec = KeyCodec([pa.field("slot", pa.int64()), pa.field("value", kind)])
        self._known = KeyIndex()

    def add(self, slots: Slots, times: npt.NDArray[Any], values: Column | None, count: int) -> None:
        values = _require(values)
        if self._of_lists:
            slots = np.repeat(slots, pc.list_value_length(values).to_numpy())
            values = values.flatten()
        if values.null_count:
            slots = skip_nulls(slots, values)
        if not slots.all():
            values, slots = values.take(pa.array(np.flatnonzero(slots))), slots[slots > 0]
        if len(slots):
            self._known.find_or_add(self._codec.encode([pa.array(slots, pa.int64()), values]))

    def add_runs(self, runs: SlotRuns, values: Column | None, count: int) -> bool:
        return False

    def result(self, count: int) -> Column:
        every = np.arange(len(self._known))
        slots, values = self._codec.decode(self._known.words, self._known.starts(every))
        order = np.argsort(slots.to_numpy(), kind="stable")
        bounds = np.searchsorted(slots.to_numpy()[order], np.arange(1, count + 1))
        return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), values.take(pa.array(order)))


class _Sketch:
    """A sketch of the distinct 64-bit hashes of each slot; stored sketches are united."""

    def __init__(self, kind: pa.DataType, log2_size: int) -> None:
        self._of_sketches = pa.types.is_binary(kind)
        self._log2_size = log2_size
        self._slots, self._hashes = np.zeros(0, np.int64), np.zeros(0, np.uint64)
        self._thetas = np.zeros(0, np.uint64)
        """Theta of each slot: the least hash that did not fit, or the greatest number if all hashes fit."""
        self._added: list[tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]] = []
        self._room = _MIN_HASHES_TO_REDUCE

    def add(self, slots: Slots, times: npt.NDArray[Any], values: Column | None, count: int) -> None:
        values = _require(values)
        if self._of_sketches:
            sizes, hashes = hashes_in(values)
            slots = np.repeat(slots, sizes)
        else:
            hashes = hashes_of(bare_values(values))
            slots = skip_nulls(slots, values) if values.null_count else slots
        size = len(self._thetas)
        self._thetas = _grow(self._thetas, count)
        self._thetas[size:] = _NO_THETA
        there = (slots > 0) & (hashes < self._thetas[slots])
        self._added.append((slots[there].astype(np.int64), hashes[there]))
        if sum(len(owners) for owners, _ in self._added) > self._room:
            self._accumulator()

    def _accumulator(self) -> None:
        """Reduce the accumulated hashes to those that the sketches need."""
        added, self._added = self._added, []
        slots = np.concatenate([self._slots, *(owners for owners, _ in added)])
        hashes = np.concatenate([self._hashes, *(hashes for _, hashes in added)])
        self._slots, self._hashes = least_hashes(slots, hashes, self._log2_size)
        self._room = max(len(self._slots), _MIN_HASHES_TO_REDUCE)
        last = np.flatnonzero(np.diff(self._slots, append=-1))
        full = last[np.diff(last, prepend=-1) > 1 << self._log2_size]
        self._thetas[self._slots[full]] = self._hashes[full]

    def add_runs(self, runs: SlotRuns, values: Column | None, count: int) -> bool:
        return False

    def result(self, count: int) -> Column:
        self._accumulator()
        return images_of(self._slots - 1, self._hashes, self._log2_size, count - 1)


class _Quantiles:
    """A sketch of the numbers of each slot; stored sketches are united."""

    def __init__(self, kind: pa.DataType, log2_size: int) -> None:
        self._of_sketches = pa.types.is_binary(kind)
        self._sketches = QuantileSketches(log2_size)

    def add(self, slots: Slots, times: npt.NDArray[Any], values: Column | None, count: int) -> None:
        values = _require(values)
        slots = skip_nulls(slots, values) if values.null_count else slots
        if not slots.all():
            values, slots = values.take(pa.array(np.flatnonzero(slots))), slots[slots > 0]
        if self._of_sketches:
            self._sketches.add_images(slots, values)
        else:
            self._sketches.add_values(slots, bare_values(values).astype(np.float64))

    def add_runs(self, runs: SlotRuns, values: Column | None, count: int) -> bool:
        return False

    def result(self, count: int) -> Column:
        return self._sketches.images(count)
