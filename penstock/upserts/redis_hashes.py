"""Keep the rows of a table in hashes of Redis, one hash for each key."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import SplitResult

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.upserts.abc import Columns, UpsertTarget
from penstock.upserts.changes import DELETED

__all__ = ["RedisHashes"]

_TIME: Final = "_time"
"""The field that holds the row's time, as a text. The texts sort like the times."""
_CALL_ROWS: Final = 5_000
"""The rows per call of the script, which blocks the server while it runs."""

_SCRIPT: Final = """
local fields = cjson.decode(ARGV[1])
local width, written, at, seconds = #fields, 0, 3, tonumber(ARGV[2])
for row = 1, #KEYS do
    local key, time, deleted = KEYS[row], ARGV[at], ARGV[at + 1]
    local old = redis.call('HGET', key, '_time')
    if not old or old <= time then
        redis.call('DEL', key)
        local set = {'_time', time}
        if deleted == '1' then
            set[3], set[4] = '_deleted', '1'
        else
            for place = 1, width do
                local value = ARGV[at + 1 + place]
                if string.sub(value, 1, 1) == '+' then
                    set[#set + 1] = fields[place]
                    set[#set + 1] = string.sub(value, 2)
                end
            end
        end
        redis.call('HSET', key, unpack(set))
        if deleted == '1' and seconds > 0 then
            redis.call('EXPIRE', key, seconds)
        end
        written = written + 1
    end
    at = at + 2 + width
end
return written
"""
"""Write rows, unless the stored row of a key is newer.

The arguments are the names of the fields in JSON, the seconds until a deletion expires (0: never), and for
each row its time, ``1`` if it is deleted, and its values. A value is ``+`` and a text; null is an empty text.
"""


class RedisHashes(UpsertTarget):
    """Hashes named ``PREFIX:KEY``. Their fields are the columns as text; a null value has no field.

    Each hash also has the field ``_time``. A deleted row leaves a hash with only the fields ``_time`` and
    ``_deleted``, so that an older update does not bring the row back. This hash expires after
    `Columns.forget_after`, by Redis's clock.

    Parameters
    ----------
    uri : SplitResult
        The address: ``redis://HOST:PORT/NUMBER``.
    name : str
        The server's name for messages.
    prefix : str
        The prefix of the hashes' names.
    columns : Columns
        The table's columns and their roles.
    """

    def __init__(self, uri: SplitResult, name: str, prefix: str, columns: Columns) -> None:
        from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError

        self.name = f"{name}/{prefix}"
        self.transient = (ConnectionError, TimeoutError, BusyLoadingError)
        self._uri, self._prefix, self._columns = uri, prefix, columns
        self._client: Any = None
        self._script: Any = None
        age = columns.forget_after
        if isinstance(age, int):
            raise InvalidUsageError(
                "Redis forgets deletions by its clock, so their age must be a duration",
                table=self.name,
                hint="let the time be a timestamp, and write the age as '30 days'",
            )
        self._seconds = 0 if age is None else max(1, round(age.total_seconds()))
        for field in columns.schema:
            if pa.types.is_nested(field.type):
                raise InvalidUsageError(
                    "a column has a type that the table cannot hold",
                    column=field.name,
                    type=field.type,
                    table=self.name,
                )

    def _connect(self) -> None:
        if self._client is None:
            from redis import Redis

            self._client = Redis.from_url(self._uri.geturl())
            self._script = self._client.register_script(_SCRIPT)

    def prepare(self, *, create: bool) -> None:
        """Check that the server answers; hashes need not be created."""
        self._connect()
        self._client.ping()

    def write(self, changes: pa.Table) -> None:
        """Write a batch in atomic calls of 5,000 rows; see `UpsertTarget.write`."""
        self._connect()
        columns = self._columns
        names = _texts(changes.select(columns.key))
        keys = _keys(self._prefix, names)
        values = [
            ["" if value is None else f"+{value}" for value in column]
            for column in _texts(changes.select(columns.names))
        ]
        deleted = (
            ["1" if flag else "0" for flag in changes[DELETED].to_pylist()]
            if columns.deletes
            else ["0"] * changes.num_rows
        )
        rows = list(zip(_sortable(changes[columns.time]), deleted, *values, strict=True))
        for begin in range(0, changes.num_rows, _CALL_ROWS):
            part = slice(begin, begin + _CALL_ROWS)
            arguments = [value for row in rows[part] for value in row]
            self._script(keys=keys[part], args=[json.dumps(columns.names), self._seconds, *arguments])

    def close(self) -> None:
        """Close the connection; see `UpsertTarget.close`."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _keys(prefix: str, names: list[list[str | None]]) -> list[str]:
    r"""Return the names of hashes. In a key of several columns, a ``\`` escapes ``:`` and ``\``."""
    if len(names) > 1:
        names = [[str(name).replace("\\", "\\\\").replace(":", "\\:") for name in column] for column in names]
    return [":".join((prefix, *map(str, parts))) for parts in zip(*names, strict=True)]


def _texts(table: pa.Table) -> list[list[str | None]]:
    """Return the values of each column as text; bytes become hexadecimal digits."""
    return [
        [None if value is None else value.hex() for value in column.to_pylist()]
        if pa.types.is_binary(column.type)
        else column.cast(pa.string()).to_pylist()
        for column in table.columns
    ]


def _sortable(times: pa.ChunkedArray[Any]) -> list[str]:
    """Return times as texts of 20 digits. The texts sort like the times."""
    column = times.combine_chunks()
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    if pa.types.is_floating(column.type):
        bits = column.cast(pa.float64()).to_numpy().view(np.int64)
        # Taken as integers, the bits of negative floats are in reverse order.
        numbers = np.where(bits < 0, ~bits, bits | np.int64(-(2**63))).view(np.uint64)
    else:
        numbers = column.cast(pa.int64()).to_numpy().view(np.uint64) ^ np.uint64(2**63)
    return [f"{number:020d}" for number in numbers.tolist()]
