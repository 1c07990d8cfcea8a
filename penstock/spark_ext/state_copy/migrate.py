"""`migrate_state`: copy a query at a committed micro-batch, with columns added or widened.

Queues and joins store columns other than the key and the time only for waiting or held tuples. In the copy,
these tuples have nulls in new columns, and converted values in widened columns. For windows see
`penstock.spark_ext.state_copy.migrated_windows`, for user-defined operators
`penstock.spark_ext.state_copy.migrated_tables`.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ByteType, StructField, StructType

from penstock.conf.arguments import check_keywords
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.operators.joins.spec import SIDES
from penstock.operators.key_blocks import KEY_BLOCK
from penstock.operators.queues.repartition import QueueState
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.stream import RESERVED_PREFIX, SOURCE_COLUMN
from penstock.spark_ext.border.spark_versions import as_arrow_schema
from penstock.spark_ext.state_copy.keyed_units import JoinBuckets, marks_deletes
from penstock.spark_ext.state_copy.migrated_tables import MigratedTables, check_input
from penstock.spark_ext.state_copy.migrated_windows import convert_windows, widen_windows
from penstock.spark_ext.state_copy.query_copy import (
    CopiedQuery,
    Progress,
    QueryCopy,
    explain_missing_file,
    plan_copy,
)
from penstock.spark_ext.state_copy.rewrite import OldBuckets, RewrittenState, rewritable_kind, rewrite_buckets
from penstock.spark_ext.state_copy.wider_types import cast_exactly, check_added, check_wider
from penstock.spark_ext.worker.stateful import columns_of
from penstock.state_store.bucket_store import BucketStore

__all__ = ["Migrated", "migrate_state"]

_LOGGER = logging.getLogger(__name__)
_ONE_SCHEMA: Final = "pass one schema"
_SCHEMA_HINTS: Final = {
    "join": "pass schema={'left': ..., 'right': ...}",
    "own": "pass the columns of its tables, one schema of its input, or both",
}


@dataclass(frozen=True, slots=True)
class Migrated(CopiedQuery):
    """The result of a finished copy to another schema; see `CopiedQuery`.

    Attributes
    ----------
    added, widened : tuple of str
        The columns that were added, and the columns whose type was widened.
    """

    added: tuple[str, ...]
    widened: tuple[str, ...]


@check_keywords
def migrate_state(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    schema: str | StructType | Mapping[str, str | StructType] | None = None,
    tables: Mapping[str, str | StructType] | None = None,
    at: int | None = None,
    progress: Progress | None = None,
) -> Migrated:
    """Copy a query with added or wider columns.

    The query may have a queue, a union, a join, windows or a user-defined operator. This function runs on the
    driver and starts no JVM. As with `fork_state`, the copy is a new checkpoint and a new directory in the
    state location, nothing of the old query changes, and an interrupted call continues if it is repeated.
    Then start the query with the new checkpoint and the new columns. Waiting tuples have null in added
    columns, and so do the rows of a user-defined operator's tables.

    Parameters
    ----------
    checkpoint, path, to, at, progress
        See `fork_state`. Each bucket is one part, and all of Spark's files together are one part.
    schema : str or StructType, or a mapping of these for a join
        All columns of the new input, in their order, such as ``df.schema`` or ``"symbol string, time
        timestamp, price double"``. With `delete_when`, the input of a queue, union or join has ``deleted
        boolean`` at the end. For a join, a mapping with the columns of ``"left"``, of ``"right"``, or of
        both. This argument is optional only for a user-defined operator.
    tables : mapping of str to StructType or str, optional
        For a user-defined operator: all columns of the tables that change, by the tables' names.

    Returns
    -------
    Migrated
        The new query's id, the micro-batch, and the changed columns.

    Raises
    ------
    InvalidUsageError
        As for `fork_state`. Also if the operator is of a different kind, a column is missing, a new type is
        not wider, or an added column does not allow nulls. In these cases, nothing has been written.
    CorruptDataError
        If a file of the micro-batch is damaged or missing; a running query may have deleted it.
    UnavailableError
        If the file system refuses.

    Notes
    -----
    Wider types are integers of more bits, ``double`` for ``float``, and ``timestamp_ntz`` for ``date``. The
    key, the time and the columns of arrival and weight keep their types. Windows store only the arguments of
    their aggregates. So for windows, `Migrated.widened` names these arguments, and `Migrated.added` is empty.
    For a user-defined operator, both attributes name columns as ``table.column``.

    Examples
    --------
    >>> columns = "plug int, ts timestamp, watts double, room string"
    >>> penstock.migrate_state("/ck/a", "/var/lib/penstock", "/ck/b", schema=columns)  # doctest: +SKIP
    """
    given = dict(schema) if isinstance(schema, Mapping) else {} if schema is None else {"schema": schema}
    new = {name: _parse(one) for name, one in given.items()}
    new_tables = {name: _parse(one) for name, one in (tables or {}).items()}
    listed: dict[str, Any] = {name: list(columns_of(columns)) for name, columns in new.items()}
    if new_tables:
        listed["tables"] = {name: list(columns_of(columns)) for name, columns in new_tables.items()}
    copy = plan_copy(checkpoint, path, to, at, change=listed)
    kind, specification = rewritable_kind(copy)
    _check_kind(kind, new, new_tables)
    added: list[str] = []
    state_of: Callable[[int], RewrittenState | None]
    if kind == "own":
        own = MigratedTables(copy, specification, new_tables)
        state_of, changed = own.convert, {name: list(columns_of(one)) for name, one in new.items()}
        added, widened = own.added, own.widened
        for columns in new.values():
            check_input(specification["schema"], columns, {*specification["key"], specification["time"]})
    elif kind == "windows":
        windows = widen_windows(specification, new["schema"])
        changed, widened = {"schema": windows.schema}, [*windows.arguments]
        state_of = convert_windows(copy, specification, windows.types)
    else:
        found = {part: _compare(copy, specification, part, columns) for part, columns in new.items()}
        columns_by_part = {part: one[0] for part, one in found.items()}
        added = [name for one in found.values() for name in one[1]]
        widened = [name for one in found.values() for name in one[2]]
        convert = _converted_queues if kind == "queue" else _converted_joins
        changed = {part: list(columns_of(one)) for part, one in columns_by_part.items()}
        state_of = convert(copy, specification, columns_by_part)
    copy.begin()
    rewrite_buckets(copy, {**specification, **changed}, state_of, progress)
    _LOGGER.info(
        "migrated a query [query=%s batch=%d new_query=%s checkpoint=%s]",
        copy.query, copy.batch, copy.own, copy.new,
    )  # fmt: skip
    return Migrated(str(copy.new), copy.own, copy.batch, tuple(added), tuple(widened))


def _check_kind(kind: str, new: Mapping[str, StructType], tables: Mapping[str, StructType]) -> None:
    """Refuse schemas that do not belong to an operator of this kind."""
    if tables and kind != "own":
        raise InvalidUsageError(
            "only user-defined operators have tables",
            got=sorted(tables),
            hint=f"leave the tables out, and {_SCHEMA_HINTS.get(kind, _ONE_SCHEMA)}",
        )
    if not (new or tables):
        raise InvalidUsageError("the new columns are missing", hint=_SCHEMA_HINTS.get(kind, _ONE_SCHEMA))
    known = {*SIDES} if kind == "join" else {"schema"}
    if not new.keys() <= known:
        raise InvalidUsageError(
            "a join has the schemas of its sides" if kind == "join" else "only a join has several schemas",
            got=sorted(new),
            hint=_SCHEMA_HINTS["join"] if kind == "join" else _ONE_SCHEMA,
        )


def _converted_queues(
    copy: QueryCopy, specification: Mapping[str, Any], columns: Mapping[str, StructType]
) -> Callable[[int], RewrittenState | None]:
    """Return a function that reads a bucket of a queue and returns it with the new columns."""
    old, key = OldBuckets(copy, specification), set(specification["key"])

    def state_of(bucket: int) -> RewrittenState | None:
        state = old.read(bucket)
        return None if state is None else _convert(state, columns["schema"], key)

    return state_of


def _converted_joins(
    copy: QueryCopy, specification: Mapping[str, Any], columns: Mapping[str, StructType]
) -> Callable[[int], RewrittenState | None]:
    """Return a function that reads a bucket of a join and returns it with the new columns."""
    key = set(specification["key"])

    def change(side: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        if side not in columns:
            return rows
        # The mark of deletes is not stored, so it is only a column of the input.
        left_out = key | ({DELETED_COLUMN} if marks_deletes(specification, side) else set())
        table = _convert_rows(pa.Table.from_batches([rows]), columns[side], left_out).combine_chunks()
        return table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)

    return functools.partial(JoinBuckets(copy, specification).convert, change=change)


def _parse(given: str | StructType) -> StructType:
    if isinstance(given, StructType):
        return given
    return from_arrow_schema(parse_schema(given), prefer_timestamp_ntz=True)


def _compare(
    copy: QueryCopy, specification: Mapping[str, Any], part: str, columns: StructType
) -> tuple[StructType, list[str], list[str]]:
    """Return the new columns, and the names of the added and the widened columns.

    The new columns include the hidden column of a union.
    """
    if not copy.buckets:
        raise InvalidUsageError("the query has no state yet", hint="start it with a new checkpoint")
    place = copy.buckets[0]
    with explain_missing_file(place):
        blocks = BucketStore(place.files).read_version(place.pointer)[1].blocks
    stored = {
        field.name: field.type
        for block in (blocks[KEY_BLOCK], blocks["rows" if part == "schema" else part])
        for field in block.schema
        if not field.name.startswith(RESERVED_PREFIX) or field.name == SOURCE_COLUMN
    }
    if SOURCE_COLUMN in stored:
        columns = StructType([*columns.fields, StructField(SOURCE_COLUMN, ByteType())])
    missing = sorted(stored.keys() - set(columns.names))
    if missing:
        raise InvalidUsageError("columns are missing in the new schema", columns=missing, hint="keep them")
    fixed = {*specification["key"], specification["time"], specification.get("arrival")}
    fixed |= {specification.get("weight"), SOURCE_COLUMN}
    stored_texts = set(specification[part])
    added, widened = [], []
    for column, text, kind in zip(columns, columns_of(columns), as_arrow_schema(columns).types, strict=True):
        name = column.name
        if text in stored_texts:
            continue
        if name not in stored:
            check_added(name, nullable=column.nullable)
            added.append(name)
        elif name in fixed:
            raise InvalidUsageError(
                "the type of a key, time, arrival or weight column cannot change",
                column=name,
                was=stored[name],
                now=kind,
                hint="set it back, or start with a new checkpoint",
            )
        else:
            check_wider(name, stored[name], kind)
            widened.append(name)
    # The first bucket may be older than a restart that added columns.
    check_input(specification[part], columns, fixed)
    return columns, added, widened


def _convert(state: QueueState, columns: StructType, key: set[str]) -> QueueState:
    """Return the state with new columns of waiting tuples."""
    return replace(state, waiting=_convert_rows(state.waiting, columns, key))


def _convert_rows(old: pa.Table, columns: StructType, left_out: set[str]) -> pa.Table:
    """Return stored tuples with new columns. Penstock's own columns come first and do not change."""
    ours = [name for name in old.schema.names if name.startswith(RESERVED_PREFIX) and name != SOURCE_COLUMN]
    fields = [field for field in as_arrow_schema(columns) if field.name not in left_out]
    present = set(old.schema.names)
    values = [
        cast_exactly(old.column(field.name), field)
        if field.name in present
        else pa.nulls(old.num_rows, field.type)
        for field in fields
    ]
    return pa.Table.from_arrays(
        [*(old.column(name) for name in ours), *values], [*ours, *(field.name for field in fields)]
    )
