"""Execute a `Scan` on p-units inside a reader."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpointing.p_stream import Piece
from penstock.compression import TableBlock
from penstock.compression.kinds import adopt_coding
from penstock.errors import InvalidUsageError
from penstock.operators.scan.fragments import Fragmenter, merge_stretches
from penstock.operators.scan.newest_per_key import Latest
from penstock.operators.scan.selection import select_rows
from penstock.operators.scan.spec import Scan
from penstock.sql.comparisons import Interval, intersect_intervals, intervals_of, mask_of
from penstock.sql.evaluate import can_fail, evaluate, type_of
from penstock.sql.expression import Expression

__all__ = ["Scanner"]

_Mask: TypeAlias = "pa.Array[Any] | npt.NDArray[np.bool_]"
"""A row mask: bits from Arrow, or bytes from a kernel."""

_MAX_SHARE_TO_SELECT_FIRST = 0.5
"""Below this selectivity rows are filtered before expressions are computed.

Expressions that can fail for an unselected row are always computed after filtering."""


class Scanner:
    """Run a scan on p-units. One thread uses it, for one reader or task.

    Parameters
    ----------
    scan : Scan
        The scan to run.
    schema : pyarrow.Schema
        The schema of the p-stream.

    Raises
    ------
    InvalidUsageError
        If a column is missing, or an expression or aggregate does not support its type.
    """

    def __init__(self, scan: Scan, schema: pa.Schema) -> None:
        unknown = [name for name in scan.columns if name not in schema.names]
        if unknown:
            raise InvalidUsageError(
                "the p-stream has no such columns",
                columns=", ".join(unknown),
                known=", ".join(schema.names),
            )
        self._columns = list(scan.columns)
        read = pa.schema([schema.field(name) for name in scan.columns])
        where = None if scan.where is None else Expression.parse(scan.where)
        parts = () if where is None else where.conjuncts()
        if where is not None:
            _known_type(where, read)
        self._conjuncts = parts
        self._failing = frozenset(part for part in parts if can_fail(part, read))
        self._evaluate, self._intervals = _divide(parts, self._failing, read)
        self._select = None
        computed: list[tuple[Expression, pa.Schema]] = []
        self._selected = self._columns
        if scan.select is not None:
            self._select = {name: Expression.parse(text) for name, text in scan.select.items()}
            computed += [(value, read) for value in self._select.values()]
            used = {name for value in self._select.values() for name in value.columns}
            self._selected = [name for name in self._columns if name in used] or self._columns
        schema_of_select = self._select_schema(read)
        self._latest = None if scan.latest_by is None else Latest(scan.latest_by, schema_of_select)
        self._fragmenter = None
        self.schema = schema_of_select
        """The schema of the reader's output."""
        if scan.fragments is not None:
            self._fragments = scan.fragments
            self._values = {
                partial.name: None if partial.expression == "*" else Expression.parse(partial.expression)
                for partial in scan.fragments.partials
            }
            types = {field.name: field.type for field in schema_of_select}
            computed += [(value, schema_of_select) for value in self._values.values() if value is not None]
            for name, value in self._values.items():
                types[name] = pa.int64() if value is None else _known_type(value, schema_of_select)
            for name in (scan.fragments.time, *scan.fragments.group_by):
                types[name] = schema_of_select.field(name).type
            self._fragmenter = Fragmenter(scan.fragments, types)
            self.schema = self._fragmenter.schema
        self._max_share = (
            1.0 if any(can_fail(*computation) for computation in computed) else _MAX_SHARE_TO_SELECT_FIRST
        )

    def _select_schema(self, read: pa.Schema) -> pa.Schema:
        if self._select is None:
            return read
        return pa.schema(
            [
                read.field(value.columns[0]).with_name(name)
                if value.is_column
                else pa.field(name, _known_type(value, read))
                for name, value in self._select.items()
            ]
        )

    @property
    def null_times(self) -> int:
        """Number of rows that are in no fragment because their time is null."""
        return 0 if self._fragmenter is None else self._fragmenter.null_times

    def run(self, blocks: Iterable[tuple[Piece, TableBlock]]) -> Iterator[pa.RecordBatch]:
        """Run the scan on p-units.

        If the scan conflates or makes fragments, the output comes at the end; otherwise rows come after each
        p-unit.

        Raises
        ------
        CorruptDataError
            If a p-unit is damaged.
        InvalidUsageError
            If an integer overflows.
        """
        return self.scan_tables(self._read(blocks))

    def _read(self, blocks: Iterable[tuple[Piece, TableBlock]]) -> Iterator[pa.Table]:
        for piece, block in blocks:
            rows = block.read(self._columns, piece.first, piece.stop, keep_dictionary=True)
            yield pa.Table.from_batches([rows])

    def scan_tables(
        self, tables: Iterable[pa.Table], most_fragments: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Run the scan on tables, as `run` does on p-units.

        Parameters
        ----------
        tables : iterable of pyarrow.Table
            Tables with the scan's columns; text columns may be dictionaries.
        most_fragments : int, optional
            Yield the fragments whenever there are this many. Later fragments may have the same panes and
            groups as fragments that were yielded before.

        Raises
        ------
        InvalidUsageError
            If an integer overflows.
        """
        for rows in tables:
            result = self._rows(rows)
            if result is not None:
                yield from result.to_batches()
            elif self._fragmenter is not None and self._fragmenter.count >= (most_fragments or math.inf):
                yield self._fragmenter.finish()
        if self._fragmenter is not None:
            yield self._fragmenter.finish()
        elif self._latest is not None:
            yield self._latest.finish()

    def merge(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Merge the outputs of scanners of consecutive rows into the output of one scanner."""
        if len(batches) < 2 or (self._fragmenter is None and self._latest is None):
            return list(batches)
        if self._latest is not None:
            for batch in batches:
                self._latest.add(pa.Table.from_batches([batch]))
            return [self._latest.finish()]
        return merge_stretches(self._fragments, batches)

    def apply(self, rows: pa.Table) -> pa.Table:
        """Apply the scan's predicate and projection to the rows of a table, before they are persisted.

        Text columns of the result may be dictionaries, which a `PStreamWriter` accepts. A cast to `schema`
        decodes dictionaries.

        Raises
        ------
        InvalidUsageError
            If the scan conflates or makes fragments, or an integer overflows.
        """
        result = self._rows(rows.select(self._columns), dictionaries=True)
        if result is None:
            raise InvalidUsageError("rows can only be selected and projected before they are persisted")
        return result

    def _rows(self, rows: pa.Table, *, dictionaries: bool = False) -> pa.Table | None:
        """Process rows; return None if they are kept until the end.

        With `dictionaries`, texts may be dictionaries.
        """
        mask: _Mask | None = None
        if self._conjuncts:
            mask = self._mask(rows)
            count = mask.true_count if isinstance(mask, pa.Array) else np.count_nonzero(mask)
            if count == len(mask):
                mask = None
            elif self._fragmenter is None or count < self._max_share * len(mask):
                # First drop the columns that only the predicate needs.
                rows = select_rows(rows.select(self._selected), _bits(mask), dictionaries=dictionaries)
                mask = None
        if self._select is not None:
            columns = [_evaluate(value, rows) for value in self._select.values()]
            rows = pa.table(columns, names=list(self._select))
        if self._fragmenter is not None:
            self._accumulate(self._fragmenter, rows, None if mask is None else _bytes(mask))
            return None
        if self._latest is not None:
            self._latest.add(_decode_dictionaries(rows))
            return None
        schema = adopt_coding(self.schema, rows.schema) if dictionaries else self.schema
        return rows if rows.schema.equals(schema) else rows.cast(schema)

    def _mask(self, rows: pa.Table) -> _Mask:
        found = mask_of(self._intervals, rows) if self._intervals else None
        if found is None:
            first, *parts = self._conjuncts
            mask = _find_true(first, rows)
        elif self._evaluate:
            mask, parts = _bits(found), list(self._evaluate)
        else:
            return found
        for part in parts:
            if part not in self._failing:
                mask = pc.and_(mask, _find_true(part, rows))
                continue
            # A conjunct that can fail must see only the rows that all conjuncts before it accept.
            passed = pc.indices_nonzero(mask)
            made = np.zeros(len(mask), np.bool_)
            made[passed.to_numpy()] = _bytes(_find_true(part, rows.take(passed)))
            mask = _bits(made)
        return mask

    def _accumulate(self, fragmenter: Fragmenter, rows: pa.Table, mask: npt.NDArray[np.bool_] | None) -> None:
        if not rows.num_rows:
            return
        fragmenter.add(
            _whole(rows.column(self._fragments.time)),
            [_whole(rows.column(name)) for name in self._fragments.group_by],
            self._values_of(rows),
            mask,
        )

    def _values_of(self, rows: pa.Table) -> list[pa.Array[Any] | None]:
        """Return the values that each partial takes; None for a count of rows."""
        arrays: dict[Expression, pa.Array[Any]] = {}
        for value in self._values.values():
            if value is not None and value not in arrays:
                column = _whole(_evaluate(value, rows))
                arrays[value] = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        return [None if value is None else arrays[value] for value in self._values.values()]


def _evaluate(expression: Expression, rows: pa.Table) -> pa.ChunkedArray[Any]:
    """Evaluate an expression on rows. Each entry of a dictionary column is evaluated only once."""
    if expression.is_column:
        return rows.column(expression.columns[0])
    kinds = {name: rows.schema.field(name).type for name in expression.columns}
    coded = [name for name, kind in kinds.items() if pa.types.is_dictionary(kind)]
    if not coded:
        return evaluate(expression, rows)
    if len(kinds) == 1:
        column = _whole(rows.column(coded[0]))
        plain = pa.schema({coded[0]: column.type.value_type})
        if not column.indices.null_count and not can_fail(expression, plain):
            values = evaluate(expression, pa.table({coded[0]: column.dictionary}))
            return pa.chunked_array([_whole(values).take(column.indices)])
    return evaluate(expression, _decode_dictionaries(rows.select(list(kinds))))


def _divide(
    parts: Sequence[Expression], failing: frozenset[Expression], schema: pa.Schema
) -> tuple[tuple[Expression, ...], tuple[Interval, ...]]:
    """Split a predicate into intervals and conjuncts. Intervals replace simple comparisons.

    The scanner applies intervals before it evaluates conjuncts. So after a conjunct that can fail, no
    comparison becomes an interval: the interval would hide rows for which that conjunct must fail.
    """
    evaluated: list[Expression] = []
    intervals: list[Interval] = []
    for part in parts:
        part_intervals = None if failing.intersection(evaluated) else intervals_of(part, schema)
        if part_intervals is None:
            evaluated.append(part)
        else:
            intervals += part_intervals
    return tuple(evaluated), intersect_intervals(intervals)


def _find_true(part: Expression, rows: pa.Table) -> pa.Array[Any]:
    """Return the mask of rows for which a conjunct is true."""
    return pc.fill_null(_whole(_evaluate(part, rows)), False)


def _bits(mask: _Mask) -> pa.Array[Any]:
    if isinstance(mask, pa.Array):
        return mask
    packed = np.packbits(mask, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(packed)])


def _bytes(mask: _Mask) -> npt.NDArray[np.bool_]:
    """Convert a mask to bytes for kernels; this is ten times as fast as Arrow's conversion."""
    if not isinstance(mask, pa.Array):
        return mask
    if not len(mask):
        return np.empty(0, np.bool_)
    end = mask.offset + len(mask)
    bits = np.frombuffer(mask.buffers()[1], np.uint8)
    return np.unpackbits(bits, bitorder="little", count=end)[mask.offset :].view(np.bool_)


def _decode_dictionaries(rows: pa.Table) -> pa.Table:
    if not any(pa.types.is_dictionary(field.type) for field in rows.schema):
        return rows
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def _whole(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _known_type(expression: Expression, schema: pa.Schema) -> pa.DataType:
    kind = type_of(expression, schema)
    if kind is None:
        raise InvalidUsageError(
            "an expression cannot be computed by a p-stream's reader",
            expression=expression.text,
            hint="Spark can, after the read",
        )
    return kind
