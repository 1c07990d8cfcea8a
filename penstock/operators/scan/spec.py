"""The specification of a scan: operators that a p-stream's reader runs on its tuples.

The graph's planner creates a `Scan`; users do not. The reader gets the scan as JSON and executes it in this
order:

1. **read**: read only the columns in `columns`;
2. **where**: keep the rows for which the predicate is true, neither false nor null;
3. **select**: compute the output columns, in the order of the mapping;
4. at most one of: **latest_by**, the newest row of each key; **fragments**, partial aggregates of each pane
   and group.

Steps 3 and 4 take the output of the step before. The result is the same as if these operators ran after the
reader. All expressions are deterministic and supported by `penstock.sql.evaluate`.

The JSON, in which absent fields are null::

    {"columns": ["timestamp", "category", "cpu"], "where": "eventType = 1",
     "select": {"timestamp": "timestamp", "turnover": "price * volume"},
     "latest_by": {"key": ["symbol"], "time": "time"},
     "fragments": {"pane_ms": 1000, "time": "timestamp", "time_unit": "s", "group_by": ["category"],
                   "partials": [{"kind": "sum", "expression": "cpu", "name": "sum_cpu"}]}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from penstock.errors import InvalidUsageError

__all__ = [
    "GROWING",
    "NEWEST",
    "PANE",
    "WEIGHT",
    "Fragments",
    "LatestBy",
    "Partial",
    "PartialKind",
    "Scan",
    "TimeUnit",
]

PANE: Final = "pane"
"""The column of a fragment with the start of its pane."""

WEIGHT: Final = "__penstock_weight"
"""The aggregate of windows with the group's weight for the scheduler; it is not part of the result."""

NEWEST: Final = "__penstock_newest"
"""The partial with a fragment's newest time, present if the watermark depends on it."""

PartialKind: TypeAlias = Literal[
    "count",
    "sum",
    "add",
    "m2",
    "add_m2",
    "min",
    "max",
    "first",
    "last",
    "distinct",
    "union",
    "sketch",
    "kll",
    "own",
]
TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns"]

GROWING: Final = frozenset({"distinct", "sketch", "kll", "own"})
"""Kinds of partials whose size grows with their values."""

_KINDS: Final = get_args(PartialKind)
_AGAIN: Final[dict[PartialKind, PartialKind]] = {
    "count": "sum",
    "sum": "add",
    "m2": "add_m2",
    "distinct": "union",
}
"""Maps a kind of partial to the kind that combines such partials, if the two kinds differ."""
_UNITS: Final = get_args(TimeUnit)


def _require(holds: bool, fact: str, **context: Any) -> None:
    if not holds:
        raise InvalidUsageError(f"wrong scan: {fact}", **context)


def _require_names(names: object, what: str) -> None:
    """Check a tuple of distinct, non-empty names."""
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise InvalidUsageError(f"wrong scan: {what} is not a tuple of names")
    _require(len(set(names)) == len(names), f"{what} names a column twice", names=", ".join(names))


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial aggregate of a pane and group. Partials of one kind can be combined.

    Partials of the kinds in `GROWING`, and of ``union``, grow with the number of values. All other kinds have
    a fixed size.

    Parameters
    ----------
    kind : str
        - ``count``: number of rows whose expression is not null, int64;
        - ``sum``: sum of non-null values; int64 for integers, or `penstock.operators.aggregates.wide.WIDE` if
          a sum exceeds 64 bits; float64 for floats; null if all values are null;
        - ``add``: sum of such sums;
        - ``m2``: sum of squared deviations from the mean, float64, stored with count and sum of the same
          expression (`penstock.operators.aggregates.moments`); null if all values are null;
        - ``add_m2``: the M2 of all values, computed from several M2 with their counts and sums;
        - ``min``, ``max``: least or greatest non-null value, in the expression's type; null if all values are
          null. As in Spark, NaN is greater than all numbers;
        - ``first``, ``last``: the value, possibly null, in the row with the least or greatest time, in the
          expression's type. If times are equal, the first or last arrival is used;
        - ``distinct``: list of the distinct non-null values; no nested types;
        - ``union``: union of such lists;
        - ``sketch``: a sketch (`penstock.operators.aggregates.sketches`) of 64-bit hashes that are not null,
          binary;
        - ``kll``: a sketch (`penstock.operators.aggregates.quantiles`) of numbers that are not null, binary;
        - ``own``: a state of a user's aggregate (`penstock.operators.aggregates.own`), binary.
    expression : str
        Spark SQL over the output of `Scan.select`. A ``count`` of ``*`` counts all rows.
    name : str
        The output column.
    log2_size : int
        Size of a ``sketch`` or ``kll`` as a power of two; 0 for other kinds.
    function : str
        The aggregate of an ``own``, as ``module:Class``; empty for other kinds.

    Raises
    ------
    InvalidUsageError
        If the kind is unknown, or a text is empty.
    """

    kind: PartialKind
    expression: str
    name: str
    log2_size: int = 0
    function: str = ""

    def __post_init__(self) -> None:
        _require(self.kind in _KINDS, "unknown partial", kind=self.kind, known=", ".join(_KINDS))
        _require(bool(self.expression and self.name), "a partial without expression or name", kind=self.kind)
        _require(self.expression != "*" or self.kind == "count", "only count takes *", kind=self.kind)
        _require(
            (self.log2_size > 0) == (self.kind in ("sketch", "kll")),
            "only a sketch has a size",
            kind=self.kind,
        )
        _require(bool(self.function) == (self.kind == "own"), "only own has a function", kind=self.kind)

    @property
    def combining(self) -> Partial:
        """The partial that combines several such partials, under the same name."""
        return replace(self, kind=_AGAIN.get(self.kind, self.kind), expression=self.name)


@dataclass(frozen=True, slots=True)
class LatestBy:
    """Conflation: only the newest row of each key; if times are equal, the last arrival.

    Parameters
    ----------
    key : tuple of str
        The update key's columns.
    time : str
        The column whose greatest value is the newest. All rows with a null in key or time are kept, so that
        the queue after the reader can reject or count them.
    by_last : bool
        Whether the output is ordered by the positions of the newest rows. By default it is ordered by the
        positions of the keys' first rows.

    Raises
    ------
    InvalidUsageError
        If no column is named, or a column is named twice.
    """

    key: tuple[str, ...]
    time: str
    by_last: bool = False

    def __post_init__(self) -> None:
        _require_names(self.key, "key")
        _require(bool(self.key and self.time), "conflation needs a key and a time")


@dataclass(frozen=True, slots=True)
class Fragments:
    """The fragment function of a window: partial aggregates of each pane and group (Scabbard §2.3).

    A pane is ``[k * pane_ms, (k + 1) * pane_ms)`` since 1970-01-01T00:00:00Z, for any integer k. So windows
    assembled from panes are aligned like Spark's ``window()``. The output columns are `PANE` (the pane's
    start, in the type of the time column), `group_by`, and the partials. The output has one row for each pane
    and group in the input of a reader call, in any order. Nulls in a group column form a separate group. Rows
    with a null time are in no pane; the reader counts them.

    Parameters
    ----------
    pane_ms : int
        The pane's length: the greatest common divisor of the window's size and slide.
    time : str
        A column of timestamps or integers.
    time_unit : str
        The unit of the time column: ``s``, ``ms``, ``us`` or ``ns``.
    group_by : tuple of str
        Group columns. Without group columns, all rows are one group.
    partials : tuple of Partial
        The partials, with distinct names.
    delay_ms : int
        The watermark's delay if it is not a whole number of panes; otherwise 0. Only `add_watermark` sets a
        number above 0, and then also adds the partial `NEWEST`.

    Raises
    ------
    InvalidUsageError
        If the pane is not a whole number of time units, a name occurs twice, or nothing is aggregated.
    """

    pane_ms: int
    time: str
    time_unit: TimeUnit
    group_by: tuple[str, ...]
    partials: tuple[Partial, ...]
    delay_ms: int = 0

    def __post_init__(self) -> None:
        _require_names(self.group_by, "group_by")
        _require(
            self.time_unit in _UNITS, "unknown unit of time", unit=self.time_unit, known=", ".join(_UNITS)
        )
        _require(bool(self.time), "fragments need a time")
        _require(self.pane_ms >= 1, "a pane is at least 1 ms", pane_ms=self.pane_ms)
        whole = self.time_unit != "s" or self.pane_ms % 1000 == 0
        _require(whole, "a pane is shorter than a step of its time", pane_ms=self.pane_ms, time=self.time)
        _require(bool(self.partials), "fragments aggregate nothing")
        _require_names((PANE, *self.group_by, *(partial.name for partial in self.partials)), "a fragment")
        told = any(partial.name == NEWEST for partial in self.partials)
        _require((self.delay_ms > 0) == told, "a delay needs the newest time", delay_ms=self.delay_ms)

    def add_watermark(self, delay_ms: int, time: str) -> Fragments:
        """Return fragments that also compute the newest time, if a watermark with this delay needs it.

        Parameters
        ----------
        delay_ms : int
            The watermark delay.
        time : str
            The time, as an expression over the same columns as partials.
        """
        if delay_ms % self.pane_ms == 0:
            return self
        newest = Partial("max", time, NEWEST)
        return replace(self, partials=(*self.partials, newest), delay_ms=delay_ms)

    @property
    def without_watermark(self) -> Fragments:
        """These fragments without the column of the newest time."""
        partials = tuple(partial for partial in self.partials if partial.name != NEWEST)
        return replace(self, partials=partials, delay_ms=0)

    def watermark(self, newest: int) -> int:
        """Return the pane that holds the watermark, for a newest time in units of the time column."""
        return (newest * self.pane_ms // self.pane_steps - self.delay_ms) // self.pane_ms

    @property
    def pane_steps(self) -> int:
        """The pane's length in units of the time column."""
        return (
            self.pane_ms
            * {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}[self.time_unit]
            // (1_000 if self.time_unit == "s" else 1)
        )


@dataclass(frozen=True, slots=True)
class Scan:
    """Operators that a reader runs on tuples, in the order of the module docstring.

    Parameters
    ----------
    columns : tuple of str
        The columns to read. If there are none, rows are only counted.
    where : str, optional
        The predicate, as Spark SQL over `columns`.
    select : mapping of str to str, optional
        Output names with Spark SQL over `columns`; None outputs `columns` unchanged.
    latest_by : LatestBy, optional
        The conflation of the output of `select`.
    fragments : Fragments, optional
        The fragments to make from the output of `select`.

    Raises
    ------
    InvalidUsageError
        If parts contradict each other, or name a column that the step before does not output.
    """

    columns: tuple[str, ...]
    where: str | None = None
    select: Mapping[str, str] | None = None
    latest_by: LatestBy | None = None
    fragments: Fragments | None = None

    def __post_init__(self) -> None:
        _require_names(self.columns, "columns")
        _require(self.where is None or bool(self.where.strip()), "an empty predicate")
        if self.select is not None:
            _require(bool(self.select), "an empty select")
            _require(all(self.select) and all(self.select.values()), "a select without name or text")
            object.__setattr__(self, "select", MappingProxyType(dict(self.select)))
        _require(self.latest_by is None or self.fragments is None, "both conflation and fragments")
        if self.latest_by is not None:
            self._need_columns((*self.latest_by.key, self.latest_by.time))
        if self.fragments is not None:
            self._need_columns((*self.fragments.group_by, self.fragments.time))

    def _need_columns(self, names: Iterable[str]) -> None:
        for name in names:
            _require(
                name in self.selected, "there is no such column", column=name, known=", ".join(self.selected)
            )

    def __hash__(self) -> int:
        """Hash the JSON form."""
        return hash(self.to_json())

    @property
    def selected(self) -> tuple[str, ...]:
        """The names of the columns after `select`."""
        return self.columns if self.select is None else tuple(self.select)

    @property
    def output(self) -> tuple[str, ...]:
        """The names of the output columns."""
        if self.fragments is None:
            return self.selected
        return (PANE, *self.fragments.group_by, *(partial.name for partial in self.fragments.partials))

    def to_json(self) -> str:
        """Return the scan as JSON on one line."""
        return json.dumps(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form as a dictionary."""
        document = {
            "columns": self.columns,
            "where": self.where,
            "select": None if self.select is None else dict(self.select),
            "latest_by": None
            if self.latest_by is None
            else asdict(self.latest_by, dict_factory=_drop_defaults),
            "fragments": None
            if self.fragments is None
            else asdict(self.fragments, dict_factory=_drop_defaults),
        }
        return {name: value for name, value in document.items() if value is not None}

    @classmethod
    def from_json(cls, text: str) -> Scan:
        """Parse the output of `to_json`.

        Raises
        ------
        InvalidUsageError
            If `text` is not the JSON of a scan, or the scan is invalid.
        """
        try:
            document = json.loads(text)
            latest, fragments = document.get("latest_by"), document.get("fragments")
            return cls(
                **_fields(document, {"columns": tuple})
                | {
                    "latest_by": latest and LatestBy(**_fields(latest, {"key": tuple})),
                    "fragments": fragments
                    and Fragments(**_fields(fragments, {"group_by": tuple, "partials": _partials})),
                }
            )
        except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise InvalidUsageError(f"not the JSON of a scan: {error}") from None


def _drop_defaults(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return fields as a mapping, without rare fields that have their default value."""
    rare = (("log2_size", 0), ("function", ""), ("delay_ms", 0), ("by_last", False))
    return {name: value for name, value in fields if (name, value) not in rare}


def _fields(document: dict[str, Any], convert: Mapping[str, Any]) -> dict[str, Any]:
    return document | {name: to(document[name]) for name, to in convert.items()}


def _partials(documents: list[dict[str, Any]]) -> tuple[Partial, ...]:
    return tuple(Partial(**document) for document in documents)
