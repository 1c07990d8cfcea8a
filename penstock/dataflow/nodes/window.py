"""Windows and their aggregates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

import pyarrow as pa

from penstock.dataflow.nodes.base import Node, distinct, find_column
from penstock.dataflow.nodes.service import check_weights, describe_late_rows, describe_limit
from penstock.dataflow.nodes.stateless import Select, Where
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import Decomposition, decompose, pane_ms, sketch_argument
from penstock.operators.aggregates.own import takes_values
from penstock.operators.scan.spec import PANE, WEIGHT, Partial, TimeUnit
from penstock.operators.types import UNKNOWN, aggregate_type, expression_type, only_branch
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.lives import SILENT_COLUMN, check_windows, describe_lives
from penstock.operators.update_stream.operator_options import WindowOptions
from penstock.operators.update_stream.options import session_gap
from penstock.sql.expression import Expression, column
from penstock.units import duration_text, window_rows

__all__ = [
    "WINDOW",
    "Aggregate",
    "Assemble",
    "Extreme",
    "RowWindow",
    "SessionWindow",
    "Window",
    "check_window_kept",
    "window_by_key",
]

WINDOW: Final = "window"
"""The column of an aggregate that holds its window: a struct of ``start`` and ``end``."""

_INSTANT: Final = pa.timestamp("us", "UTC")
_WINDOW_TYPE: Final = pa.struct({"start": _INSTANT, "end": _INSTANT})


@dataclass(frozen=True, slots=True)
class Window(Node):
    """Define time windows ``[start, end)`` for the following aggregate, as in Spark.

    Parameters
    ----------
    time, time_unit, size_ms, slide_ms
        As in `Graph.window`.
    options : WindowOptions
        Other arguments of `penstock.update_window`. Mode ``append`` emits all windows; windows that end
        together are emitted in one micro-batch. Modes ``lazy`` and ``eager`` emit each group's most recent
        window, group by group (UpStream §6). If the windows have deletes, ``delete_when`` is
        `DELETED_COLUMN`, and the input has a column of this name.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "window"
    separate: ClassVar[str | None] = None
    """A name for windows whose ends differ between groups, else None; readers make no fragments for these."""

    time: str
    time_unit: TimeUnit
    size_ms: int
    slide_ms: int
    options: WindowOptions = field(default_factory=WindowOptions)

    def _schema(self) -> pa.Schema:
        weight = self.options.weight
        for name in (self.time, *((weight,) if isinstance(weight, str) else ())):
            find_column(self, name, self.inputs[0].schema)
        self._check_lengths()
        check_weights(self, weight)
        try:
            check_windows(self.options, self.separate)
        except InvalidUsageError as error:
            raise self.wrong(error.fact, error.hint, **error.context) from error
        return self.inputs[0].schema

    def _check_lengths(self) -> None:
        pane_ms(self.size_ms, self.slide_ms)

    @property
    def by_key(self) -> bool:
        """Return whether only each group's most recent window is served, in policy order."""
        return self.options.by_key

    @property
    def delay_ms(self) -> int:
        """The watermark delay in milliseconds."""
        return self.options.delay_ms or 0

    @property
    def closes_together(self) -> bool:
        """Return whether windows that end together are emitted together for all groups."""
        return not self.by_key and self.separate is None

    @property
    def marks(self) -> pa.Schema:
        """The columns that mark rows of deleted and of silent groups; such rows have no aggregates."""
        options = self.options
        present = ((DELETED_COLUMN, options.delete_when), (SILENT_COLUMN, options.on_silent))
        return pa.schema([pa.field(name, pa.bool_()) for name, option in present if option is not None])

    @property
    def lengths(self) -> tuple[str, str]:
        """Size and slide as text."""
        return duration_text(self.size_ms), duration_text(self.slide_ms)

    @property
    def pane_ms(self) -> int:
        """The pane length in milliseconds."""
        return pane_ms(self.size_ms, self.slide_ms)

    def _describe_lengths(self) -> str:
        return " by ".join(self.lengths)

    def _describe_order(self) -> str:
        return f"over {self.time}"

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return required columns, the time and the mark of deletes; all columns if late rows are kept."""
        options = self.options
        deleted = () if options.delete_when is None else (options.delete_when,)
        return (required.union(self.schema.names if options.late_to is not None else (self.time, *deleted)),)

    def describe(self) -> str:
        """Return size, slide and time; add mode and policy if windows are served by key."""
        late = f", {duration_text(self.delay_ms)} late" if self.delay_ms else ""
        service = ""
        if self.by_key:
            options = self.options
            service = f", {options.mode}, {options.order}"
            service += describe_limit(options.budget, options.contract)
            if options.weight is not None:
                service += (
                    f", weight {options.weight}" if isinstance(options.weight, str) else ", weights by key"
                )
        service += ", deletes" if self.options.delete_when is not None else ""
        service += describe_lives(self.options) + describe_late_rows(self.options.late_to)
        return f"{self._describe_lengths()} {self._describe_order()}{late}{service}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWindow(Window):
    """Define windows that each have a fixed number of a group's rows, in time order.

    Only the bucket of a group can count the group's rows, so readers make no fragments.

    Parameters
    ----------
    size_rows, slide_rows : int
        Size and slide in rows. The durations that `Window` has are unused.
    """

    separate: ClassVar[str | None] = "windows of rows"

    size_ms: int = field(default=0, init=False)
    slide_ms: int = field(default=0, init=False)
    size_rows: int
    slide_rows: int

    def _check_lengths(self) -> None:
        window_rows(*self.lengths)

    @property
    def lengths(self) -> tuple[str, str]:
        """See `Window.lengths`."""
        return f"{self.size_rows} rows", f"{self.slide_rows} rows"

    def _describe_order(self) -> str:
        return f"of each group in the order of {self.time}, counted in its bucket"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindow(Window):
    """Define session windows: a session of a group ends if no row of the group follows within the gap.

    Parameters
    ----------
    gap_ms : int
        The least time between two successive rows of a group that puts them into different sessions.
    """

    separate: ClassVar[str | None] = "session windows"

    size_ms: int = field(default=0, init=False)
    slide_ms: int = field(default=0, init=False)
    gap_ms: int

    def _check_lengths(self) -> None:
        session_gap(self.gap, None, None, self.options)

    @property
    def gap(self) -> str:
        """The gap as text."""
        return duration_text(self.gap_ms)

    def _describe_lengths(self) -> str:
        return f"sessions with a gap of {self.gap}"


@dataclass(frozen=True, slots=True)
class Extreme:
    """The windows with the greatest or least aggregate. An operator may prune all other windows.

    Parameters
    ----------
    value : str
        The compared aggregate: a count, sum, minimum or maximum of integers or floats.
    greatest : bool
        Whether the operator keeps the windows with the greatest value rather than the least value.
    by : tuple of str
        Only windows that end together and have equal values in these columns are compared.
    """

    value: str
    greatest: bool
    by: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe the windows to keep."""
        direction = "greatest" if self.greatest else "least"
        return f"the {direction} {self.value} of each {', '.join((WINDOW, *self.by))}"


@dataclass(frozen=True, slots=True)
class Aggregate(Node):
    """Aggregate each group within a window, or within the `WINDOW` of a previous aggregate.

    The output has the group's columns, `WINDOW`, and the aggregates except `WEIGHT`. A window over an update
    stream is an update of its group, and so is a window in lazy or eager mode. For such windows the group is
    the update key (UpStream §3.2). If a rule has set `extreme`, the output may lack windows that cannot be
    the extreme.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "aggregate"

    group_by: tuple[str, ...]
    aggregates: tuple[tuple[str, Expression], ...]
    extreme: Extreme | None = None

    def _schema(self) -> pa.Schema:
        above = self.inputs[0]
        schema = above.schema
        if not self.aggregates:
            raise self.wrong("no aggregate is given", "pass an aggregate, such as agg(load='avg(value)')")
        is_windowed = isinstance(above, Window)
        if isinstance(above, Window):
            check_weights(self, above.options.weight, self.group_by)
        if not is_windowed and WINDOW not in self.group_by:
            raise self.wrong("an aggregate over a stream needs a window", "call window(...) before group_by")
        separate_window = None if is_windowed else _find_separate_window(above)
        if separate_window is not None and separate_window.separate is not None:
            raise self.wrong(
                f"{separate_window.separate} cannot be aggregated by window",
                f"use windows of time; {separate_window.separate} end at a different time for each group",
                window=separate_window.describe(),
            )
        if separate_window is not None:
            raise self.wrong(
                "only windows in append mode can be aggregated by window",
                "use mode='append', in which all groups of a window close together",
                mode=separate_window.options.mode,
            )
        if not is_windowed:
            check_window_kept(self, above)
        fields = [find_column(self, name, schema) for name in self.group_by]
        if is_windowed:
            fields.append(pa.field(WINDOW, _WINDOW_TYPE))
        for name, expression in self.aggregates:
            for column_name in expression.columns:
                find_column(self, column_name, schema, expression)
            if name != WEIGHT:
                fields.append(pa.field(name, aggregate_type(expression, schema)))
        if isinstance(above, Window):
            fields += above.marks
        for partial in self.decomposition.partials:
            self._check_values(partial, schema)
        return distinct(self, pa.schema(fields))

    def _check_values(self, partial: Partial, schema: pa.Schema) -> None:
        """Refuse an aggregate of values whose type its partial does not support."""
        if partial.kind in ("count", "first", "last"):
            return
        if partial.kind == "sketch":
            kind = expression_type(sketch_argument(partial), schema)
            if _has_map(kind):
                raise self.wrong(
                    "values that contain maps cannot be counted",
                    "count to_json(x) instead; Spark cannot hash a map",
                    expression=sketch_argument(partial).text,
                    type=kind,
                )
            return
        kind = expression_type(Expression.parse(values := only_branch(partial.expression)), schema)
        if partial.kind == "distinct":
            if pa.types.is_nested(kind):
                raise self.wrong(
                    "values of a nested type cannot be counted",
                    "use count(DISTINCT x) with a plain type",
                    expression=partial.expression,
                    type=kind,
                )
            return
        fits = _is_number(kind) or (partial.kind in ("min", "max") and pa.types.is_temporal(kind))
        if kind != UNKNOWN and not (takes_values(partial.function, kind) if partial.kind == "own" else fits):
            calls = [partial.function] if partial.function else [f"({partial.expression})", f"({values})"]
            written = [one.text for _, one in self.aggregates if any(call in one.text for call in calls)]
            raise self.wrong(
                "an aggregate does not take values of this type",
                "cast decimals to DOUBLE, or on Spark x * 100 to BIGINT; sum, median, percentile, own take "
                "integers and floats; min and max also dates and times; first and last take any type",
                expression=", ".join(written) or partial.expression,
                type=kind,
            )

    def _key(self) -> tuple[str, ...]:
        above = self.inputs[0]
        if not isinstance(above, Window):
            # These windows close together, so an aggregate across groups may drop columns of the key.
            return tuple(name for name in self.group_by if name in above.key)
        missing = [name for name in above.key if name not in self.group_by]
        if missing:
            raise self.wrong(
                "an update stream would lose its key",
                f"group by {', '.join(above.key)}; by_window, in Python group_by('window'), combines groups",
                column=missing[0],
            )
        return self.group_by if above.key or above.by_key else ()

    @property
    def decomposition(self) -> Decomposition:
        """The partials of the aggregates, and the expressions that compute the aggregates from partials."""
        window = self.inputs[0]
        time = window.time if isinstance(window, Window) else WINDOW
        texts = {name: expression.text for name, expression in self.aggregates}
        return decompose(texts, time, self.group_by)

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the group's columns and the aggregated columns."""
        used = {name for _, expression in self.aggregates for name in expression.columns}
        return (frozenset(used | set(self.group_by)),)

    def describe(self) -> str:
        """Return the aggregates and the group columns."""
        aggregates = ", ".join(
            f"{expression.text} AS {name}" for name, expression in self.aggregates if name != WEIGHT
        )
        return f"{aggregates}{self.suffix}"

    @property
    def suffix(self) -> str:
        """The end of a description: the group columns and the extreme."""
        groups = f" by {', '.join(self.group_by)}" if self.group_by else ""
        return groups if self.extreme is None else f"{groups}; for {self.extreme.describe()}"


@dataclass(frozen=True, slots=True)
class Assemble(Node):
    """The assembly function of an aggregate whose fragments a reader computes (Scabbard §2.3).

    This node combines partials of the same pane and group, assembles panes into windows, and computes the
    aggregates.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "assemble"

    aggregate: Aggregate
    decomposition: Decomposition

    def _schema(self) -> pa.Schema:
        return self.aggregate.schema

    def _key(self) -> tuple[str, ...]:
        return self.aggregate.key

    @property
    def window(self) -> Window:
        """The windows to assemble."""
        window = self.aggregate.inputs[0]
        assert isinstance(window, Window)  # noqa: S101  # an aggregate without a window has no panes
        return window

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return panes, groups and partials."""
        partials = {partial.name for partial in self.decomposition.partials}
        return (frozenset({PANE, *self.aggregate.group_by} | partials),)

    def describe(self) -> str:
        """Return windows, aggregates and groups."""
        assembly = self.decomposition.assembly.items()
        aggregates = ", ".join(f"{text} AS {name}" for name, text in assembly if name != WEIGHT)
        return f"{self.window.describe()}: {aggregates}{self.aggregate.suffix}"


def check_window_kept(node: Node, above: Node) -> None:
    """Refuse a projection that changes `WINDOW` above an operator that needs whole windows.

    Raises
    ------
    InvalidUsageError
        If such a projection is between `node` and the operator that makes the windows.
    """
    while isinstance(above, Where | Select):
        projection = dict(above.columns) if isinstance(above, Select) else {}
        if WINDOW in projection and projection[WINDOW] != column(WINDOW):
            raise node.wrong(
                f"{WINDOW} is changed before the {node.label}",
                "keep it as it is; other columns may be computed from it",
                after=above.name,
            )
        above = above.inputs[0]


def window_by_key(node: Node) -> Window | None:
    """Return the windows that are served by key and feed a node; None if there are none."""
    return _window(node, lambda window: window.by_key)


def _find_separate_window(node: Node) -> Window | None:
    """Return the windows that feed a node and are emitted group by group; None if there are none."""
    return _window(node, lambda window: not window.closes_together)


def _window(node: Node, accepts: Callable[[Window], bool]) -> Window | None:
    stack = [node]
    while stack:
        at = stack.pop()
        window = at.window if isinstance(at, Assemble) else at.inputs[0] if at.inputs else None
        if isinstance(at, Aggregate | Assemble) and isinstance(window, Window):
            if accepts(window):
                return window
        else:
            stack += at.inputs
    return None


def _has_map(kind: pa.DataType) -> bool:
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return bool(pa.types.is_map(kind)) or any(map(_has_map, parts))


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
