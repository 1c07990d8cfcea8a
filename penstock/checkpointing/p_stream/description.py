"""The description of a p-stream, and checks of names and columns."""

from __future__ import annotations

import base64
import contextlib
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from penstock import _clock
from penstock.checkpointing.fields import Fields
from penstock.checkpointing.files import Files
from penstock.checkpointing.p_stream.update_log import UpdateLog
from penstock.checkpointing.p_unit import PUnit, decode, encode
from penstock.ddl import type_text
from penstock.errors import ConflictError, CorruptDataError, InvalidUsageError

__all__ = [
    "COMPACTOR",
    "DESCRIPTION_FILE",
    "EARLIEST",
    "LATEST",
    "Description",
    "Start",
    "as_arrow",
    "check_name",
    "check_schema",
    "describe",
    "parse_description",
    "parse_start",
    "publish_description",
]

DESCRIPTION_FILE = "p-stream"
COMPACTOR = "penstock.compactor"
"""The writer's name in the log for compactions of an update log; no other writer can have it."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Start: TypeAlias = str | int | datetime
"""The start of a reader: ``earliest``, ``latest``, an offset, or the time of the first commit to read."""

_OF_FILE_SYSTEMS: Final = frozenset({"lost+found"})
"""Entries that a new file system has."""
_MISFITS = (pa.ArrowException, OverflowError, TypeError, ValueError)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Description(NamedTuple):
    """The identity and the columns of a p-stream, its kind of I/O, and its definition as an update log."""

    identity: str
    schema: pa.Schema
    direct_io: bool
    update_log: UpdateLog | None

    def check_same(self, direct_io: bool | None, update_log: UpdateLog | None, location: str) -> None:
        """Check that options which a program gives are the options of the stored p-stream.

        Raises
        ------
        InvalidUsageError
            If an option differs.
        """
        if direct_io is not None and direct_io != self.direct_io:
            raise InvalidUsageError(
                "direct I/O of a p-stream cannot change after it is created",
                location=location,
                has=self.direct_io,
                asked=direct_io,
                hint="leave it out",
            )
        if update_log is not None and self.update_log is not None and update_log.delete_when is None:
            # Without deletes it has no effect. Older versions stored what the program gave.
            update_log = replace(update_log, keep_deletes_us=self.update_log.keep_deletes_us)
        if update_log is not None and update_log != self.update_log:
            raise InvalidUsageError(
                "the p-stream was created with another key, time, delete_when or keep_deletes",
                location=location,
                has=self.update_log,
                hint="leave these options out, or give their original values",
            )


def parse_start(start: object) -> Start:
    """Return the start that a text means; a time without a zone is in UTC.

    Raises
    ------
    InvalidUsageError
        If it is not a start.
    """
    try:
        if isinstance(start, str):
            if start.lower() in {EARLIEST, LATEST}:
                return start.lower()
            is_offset = start.isascii() and start.isdecimal()
            start = int(start) if is_offset else datetime.fromisoformat(start)
        if isinstance(start, datetime):
            return start if start.tzinfo else start.replace(tzinfo=UTC)
        if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
            return start
    except ValueError:
        pass  # the error below names what a start may be
    raise InvalidUsageError(
        "the start is not valid",
        start=start,
        hint="use earliest, latest, an offset, or a time such as 2026-01-31T12:00:00Z",
    )


def describe(schema: pa.Schema, direct_io: bool, update_log: UpdateLog | None) -> memoryview:
    """Return the file that describes a new p-stream.

    Raises
    ------
    InvalidUsageError
        If the columns do not fit the update log.
    """
    if update_log is not None:
        update_log.check_schema(schema)
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    meta = {"identity": _clock.new_id(), "schema": text, **({"direct_io": True} if direct_io else {})}
    if update_log is not None:
        meta["update_log"] = update_log.to_meta()
    return encode(PUnit("p-stream", meta))


def publish_description(files: Files, described: memoryview) -> None:
    """Create a p-stream in a directory that has no other files, unless another process creates it first.

    Hidden files do not count, because a creation that was killed leaves a hidden file.

    Raises
    ------
    InvalidUsageError
        If the directory has other files, or a p-stream whose description is lost.
    UnavailableError
        If the file system refuses.
    """
    names = [fact.name for fact in files.list()]
    others = [name for name in names if not name.startswith(".") and name not in _OF_FILE_SYSTEMS]
    if not others:
        with contextlib.suppress(ConflictError):
            files.publish(DESCRIPTION_FILE, described)
        return
    try:
        files.read_range(DESCRIPTION_FILE, 0, 1)  # another process may have created the p-stream just now
    except FileNotFoundError:
        raise InvalidUsageError(
            "the directory has other files, and is not a p-stream",
            location=files.location,
            files=", ".join(others[:3]) + (", ..." if len(others) > 3 else ""),
            hint="name a new or empty directory",
        ) from None


def parse_description(content: bytes | memoryview, file: str) -> Description:
    """Return the description in the file of a p-stream.

    Raises
    ------
    CorruptDataError
        If the file is damaged, or describes something else.
    """
    unit = decode(content, file)
    if unit.kind != "p-stream":
        raise CorruptDataError("the file describes no p-stream", file=file, kind=unit.kind)
    fields = Fields(unit.meta, file)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fields.text("schema"))))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise fields.damage_error("schema", "an Arrow IPC schema in Base64") from error
    if len(set(schema.names)) < len(schema):
        raise fields.damage_error("schema", "a schema whose names differ")
    direct_io = fields.flag("direct_io") if fields.has("direct_io") else False
    log = UpdateLog.from_fields(fields.fields("update_log")) if fields.has("update_log") else None
    if log is not None:
        try:
            log.check_schema(schema)
        except InvalidUsageError as error:
            raise fields.damage_error("update_log", "a key and a time of the schema") from error
    return Description(fields.text("identity"), schema, direct_io, log)


def check_name(name: str) -> str:
    """Return the name of a reader or writer.

    Raises
    ------
    InvalidUsageError
        If the name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise InvalidUsageError(
            "the name is not allowed",
            name=repr(name),
            hint="use at most 100 ASCII letters, digits, _, . and -; do not begin with . or -",
        )
    if name == COMPACTOR:
        raise InvalidUsageError("the name is reserved for compactions", name=name, hint="use another name")
    return name


def check_schema(schema: pa.Schema, expected: pa.Schema, location: str) -> None:
    """Check that rows with one schema fit a stream with another schema. The order of columns may differ.

    Raises
    ------
    InvalidUsageError
        If a column is missing, unknown, of a different type, or given twice.
    """
    names = schema.names
    if len(set(names)) < len(names):
        raise InvalidUsageError("two columns have the same name", columns=", ".join(names))
    missing = [name for name in expected.names if name not in names]
    unknown = [name for name in names if name not in expected.names]
    others = [
        f"{name} is {schema.field(name).type}, not {expected.field(name).type}"
        for name in names
        if name in expected.names and not schema.field(name).type.equals(expected.field(name).type)
    ]
    if missing or unknown or others:
        raise InvalidUsageError(
            "the columns differ from the columns of the p-stream",
            location=location,
            missing=", ".join(missing) or "none",
            unknown=", ".join(unknown) or "none",
            types="; ".join(others) or "same",
        )


def as_arrow(rows: Any, schema: pa.Schema) -> pa.Table | pa.RecordBatch:
    """Convert rows to Arrow.

    Raises
    ------
    InvalidUsageError
        If the type is not supported, a column is missing or unknown, or a value has the wrong type.
    """
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        named = {name for row in rows for name in row}
    elif isinstance(rows, dict):
        named = set(rows)
    elif hasattr(rows, "__dataframe__") and hasattr(rows, "columns"):
        named = set(rows.columns)
    else:
        raise InvalidUsageError(
            "rows of this type cannot be appended",
            hint="append a pyarrow.Table, a pandas.DataFrame, a dict of columns, or a list of dicts",
            got=type(rows).__name__,
        )
    unknown = sorted(str(name) for name in named - set(schema.names))
    if unknown:
        raise InvalidUsageError(
            "the p-stream has no such columns", columns=", ".join(unknown), known=", ".join(schema.names)
        )
    if not isinstance(rows, list) and (missing := [name for name in schema.names if name not in named]):
        raise InvalidUsageError("rows lack columns of the p-stream", columns=", ".join(missing))
    try:
        return _to_table(rows, schema)
    except _MISFITS:
        # Arrow's message may contain values.
        raise _misfit(rows, schema) from None


def _to_table(rows: Any, schema: pa.Schema) -> pa.Table:
    """Return a table of rows: a list of dict, a dict of columns, or a DataFrame of pandas."""
    if isinstance(rows, list):
        return pa.Table.from_pylist(rows, schema)
    if isinstance(rows, dict):
        return pa.Table.from_pydict(rows, schema)
    return pa.Table.from_pandas(rows, schema, preserve_index=False)


def _misfit(rows: Any, schema: pa.Schema) -> InvalidUsageError:
    """Return the error for the first column whose values do not fit."""
    for field in schema:
        try:
            _to_table(rows if isinstance(rows, list) else {field.name: rows[field.name]}, pa.schema([field]))
        except _MISFITS:
            return InvalidUsageError(
                "values do not fit a column of the p-stream", column=field.name, type=type_text(field.type)
            )
    return InvalidUsageError("the columns of the rows differ in length")
