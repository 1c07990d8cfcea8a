"""The state of a user-defined operator's bucket: named tables, written when they change."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import CorruptDataError, InvalidUsageError, PenstockError, users_code_error
from penstock.operators.own.abc import Operator, name_of_operator

__all__ = ["OperatorState", "call", "check_results", "stored_schemas", "unit_meta", "waiting_keys"]

_TABLES = "tables"
_WAITING = "waiting"


def call(operator: Operator, method: str, *arguments: Any) -> Any:
    """Call a method of a user's operator.

    Raises
    ------
    InvalidUsageError
        If the method raises an error.
    """
    try:
        return getattr(operator, method)(*arguments)
    except PenstockError:
        raise
    except Exception as error:  # users' code may raise any exception
        raise users_code_error(
            f"{method} of an operator raised an error", error, operator=name_of_operator(operator)
        ) from error


def waiting_keys(operator: Operator) -> int:
    """Return the number of keys of an operator that wait.

    Raises
    ------
    InvalidUsageError
        If the operator's `waiting` does not return a number of keys.
    """
    waiting = call(operator, "waiting")
    if isinstance(waiting, int | np.integer) and waiting >= 0:
        return int(waiting)
    raise InvalidUsageError(
        "waiting of an operator returned no number of keys",
        operator=name_of_operator(operator),
        returned=type(waiting).__name__,
        hint="return 0 or more",
    )


def check_results(operator: Operator, results: object, output: pa.Schema) -> pa.Table:
    """Return the results of an operator's `run` in the types of its output.

    Raises
    ------
    InvalidUsageError
        If the results are not a table, or their columns or types differ from the output.
    """
    context: dict[str, Any] = {"operator": name_of_operator(operator)}
    if not isinstance(results, pa.Table):
        returned = type(results).__name__
        raise InvalidUsageError("run of an operator returned no pyarrow table", returned=returned, **context)
    missing = [name for name in output.names if name not in results.column_names]
    more = [name for name in results.column_names if name not in output.names]
    if missing or more:
        raise InvalidUsageError(
            "run of an operator returned other columns than its output",
            missing=missing,
            more=more,
            **context,
        )
    try:
        return results.select(output.names).cast(output)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise InvalidUsageError(
            "run of an operator returned columns of other types than its output",
            returned={field.name: str(field.type) for field in results.schema},
            expected={field.name: str(field.type) for field in output},
            **context,
        ) from error


class OperatorState:
    """The working copy of a user-defined operator: the operator, and the tables of its newest version.

    A unit names all tables in its metadata and holds the changed tables as blocks. A table that a unit does
    not name was removed. A snapshot holds all tables::

        meta    tables: schemas of all tables by name, as Arrow IPC in base64; rows: the number of all rows;
            waiting: keys that wait
        blocks  the tables that changed, by name

    Parameters
    ----------
    template : Operator
        The operator that the user made; the state copies it.
    start : str
        The id of the start of the query; see `renew`.
    """

    def __init__(self, template: Operator, start: str = "") -> None:
        self.operator = copy.deepcopy(template)
        self._start = start
        self._template = template
        self._tables: dict[str, pa.Table] = {}
        self._blocks: dict[str, pa.RecordBatch] = {}

    @property
    def rows(self) -> int:
        """The number of rows of all tables, as of the newest version."""
        return sum(table.num_rows for table in self._tables.values())

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        """The tables of the newest version."""
        return self._tables

    @property
    def size_bytes(self) -> int:
        """Memory of the tables in bytes."""
        return sum(table.nbytes for table in self._tables.values())

    def delta(self) -> PUnit:
        """Return the tables that changed since the last call.

        Raises
        ------
        InvalidUsageError
            If the operator does not return tables.
        """
        tables = call(self.operator, "snapshot")
        if not isinstance(tables, Mapping):
            raise self._wrong("does not return tables by name", returned=type(tables).__name__)
        changed = {}
        for name, table in tables.items():
            if not (isinstance(name, str) and name.isidentifier()):
                raise self._wrong("returns a table whose name is not a word", name=repr(name))
            if not isinstance(table, pa.Table):
                raise self._wrong("returns something that is no pyarrow table", table=name)
            before = self._tables.get(name)
            if before is not table and (before is None or not _equal(before, table)):
                changed[name] = self._block(name, table)
        self._tables = dict(tables)
        self._blocks = {name: block for name, block in self._blocks.items() if name in tables} | changed
        return PUnit("delta", self._meta(), changed)

    def _meta(self) -> dict[str, Any]:
        return unit_meta(self._blocks, waiting_keys(self.operator))

    def _block(self, name: str, table: pa.Table) -> pa.RecordBatch:
        if len(set(table.column_names)) != table.num_columns or not table.num_columns:
            raise self._wrong("returns a table without columns, or with two of one name", table=name)
        arrays = [
            column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [_none(column)])
            for column in table.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, table.column_names)

    def snapshot(self) -> Iterator[PUnit]:
        """Return all tables of the newest version."""
        return iter([PUnit("snapshot", self._meta(), dict(self._blocks))])

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored p-units in order, and let the operator restore the tables.

        Raises
        ------
        CorruptDataError
            If a unit lacks a table that it names.
        InvalidUsageError
            If the operator raises an error.
        """
        blocks = dict(self._blocks)
        for unit in units:
            blocks |= unit.blocks
            names = unit.meta.get(_TABLES)
            if not isinstance(names, dict) or not set(names) <= blocks.keys():
                raise CorruptDataError("a stored state of an operator lacks a table", kind=unit.kind)
            blocks = {name: blocks[name] for name in names}
        self._blocks = blocks
        self._tables = {name: pa.Table.from_batches([block]) for name, block in blocks.items()}
        # The operator may have run since the stored version, so start with a new copy.
        self._make()

    def renew(self, template: Operator, start: str) -> None:
        """Create the operator again if the state is from an earlier start of the query.

        If the query restarts with new code or arguments, a worker may still hold the old operator.
        """
        if start != self._start:
            self._template, self._start = template, start
            self._make()

    def _make(self) -> None:
        self.operator = copy.deepcopy(self._template)
        if self._tables:
            call(self.operator, "restore", dict(self._tables))

    def close(self) -> None:
        """Release the operator."""
        self._tables, self._blocks = {}, {}

    def _wrong(self, fact: str, **context: Any) -> InvalidUsageError:
        operator = name_of_operator(self.operator)
        return InvalidUsageError(
            f"snapshot of an operator {fact}",
            operator=operator,
            **context,
            hint='return pyarrow tables by name, such as {"counts": pa.table(...)}',
        )


def unit_meta(blocks: Mapping[str, pa.RecordBatch], waiting: int) -> dict[str, Any]:
    """Return the metadata of a unit, given all tables and the number of keys that wait."""
    schemas = {name: base64.b64encode(block.schema.serialize()).decode() for name, block in blocks.items()}
    rows = sum(block.num_rows for block in blocks.values())
    return {_TABLES: schemas, "rows": rows, _WAITING: waiting}


def stored_schemas(unit: PUnit) -> dict[str, pa.Schema]:
    """Return the schemas of all tables that a unit names.

    Raises
    ------
    CorruptDataError
        If the unit does not describe tables.
    """
    try:
        return {
            str(name): pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
            for name, text in unit.meta[_TABLES].items()
        }
    except (KeyError, AttributeError, TypeError, ValueError, pa.ArrowInvalid) as error:
        raise CorruptDataError("a stored state of an operator describes no tables", kind=unit.kind) from error


def _none(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    return pa.array([], column.type)


def _equal(one: pa.Table, other: pa.Table) -> bool:
    return one.schema.equals(other.schema) and one.equals(other)
