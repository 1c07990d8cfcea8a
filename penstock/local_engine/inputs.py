"""The sources of a local query.

The query's log, not the source, stores how far the query has read. `DataSourceInput` runs the same readers as
Spark, such as the readers of p-streams and of the market, in this process. Offsets have Spark's form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock._clock import new_id
from penstock.checkpointing.spark_checkpoint import local_path
from penstock.errors import InvalidUsageError
from penstock.local_engine.query_log import EntryLog, Offset
from penstock.spark_ext.border.types import as_arrow_of_spark

__all__ = ["DataSourceInput", "FilesInput", "Input", "PushInput", "WakeInput"]


class Input(Protocol):
    """A source. One thread of one process uses it."""

    schema: StructType

    def find_end(self, start: Offset | None) -> Offset | None:
        """Return the end of the rows for the next micro-batch; `start` if there are no new rows."""

    def read(self, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `start` up to, but not including, `end`, in Spark's types."""

    def is_new(self, start: Offset | None, end: Offset | None) -> bool:
        """Return whether there are rows between two offsets."""

    def release(self, end: Offset) -> None:
        """Allow the source to drop rows before `end`, because their micro-batch is committed."""

    def stop_at_present(self) -> None:
        """Fix the end of the input now, so that the query does not read later rows."""


class DataSourceInput:
    """A source that reads through the stream reader of a Spark data source written in Python.

    Parameters
    ----------
    reader : pyspark.sql.datasource.DataSourceStreamReader
        The reader, with admission control.
    schema : StructType
        The columns.
    """

    def __init__(self, reader: Any, schema: StructType) -> None:
        self._reader = reader
        self.schema = schema
        self._first: Offset | None = None

    def _start(self, start: Offset | None) -> Offset:
        if start is not None:
            return start
        if self._first is None:
            self._first = self._reader.initialOffset()
        return self._first

    def find_end(self, start: Offset | None) -> Offset | None:
        """See `Input.find_end`."""
        limit = self._reader.getDefaultReadLimit()
        found: Offset = self._reader.latestOffset(self._start(start), limit)
        return found

    def is_new(self, start: Offset | None, end: Offset | None) -> bool:
        """See `Input.is_new`."""
        return end is not None and self._start(start) != end

    def read(self, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        """See `Input.read`."""
        for part in self._reader.partitions(self._start(start), end):
            yield from self._reader.read(part)

    def release(self, end: Offset) -> None:
        """See `Input.release`."""
        self._reader.commit(end)

    def stop_at_present(self) -> None:
        """See `Input.stop_at_present`."""
        self._reader.prepareForTriggerAvailableNow()


class WakeInput:
    """A source without rows whose offset is new at each start; see `penstock.spark_ext.sources.wake`."""

    schema = StructType()

    def __init__(self) -> None:
        self._offset = {"start": new_id()}

    def find_end(self, start: Offset | None) -> Offset | None:
        """See `Input.find_end`."""
        return self._offset

    def is_new(self, start: Offset | None, end: Offset | None) -> bool:
        """Return False: a start is not input."""
        return False

    def read(self, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        """See `Input.read`."""
        return iter(())

    def release(self, end: Offset) -> None:
        """Do nothing: this input holds no rows."""

    def stop_at_present(self) -> None:
        """Do nothing: there are no rows."""


class FilesInput:
    """Files that appear in a directory or match a pattern, each read once, in the order of their times.

    Parameters
    ----------
    path : str
        A file, a directory, or a pattern.
    schema : StructType
        The columns.
    read_file : callable
        A function that returns the rows of a file in Spark's types.
    log : pathlib.Path
        The directory of the log that lists the files found so far.
    """

    def __init__(
        self, path: str, schema: StructType, read_file: Callable[[Path], pa.Table], log: Path
    ) -> None:
        self._path = path
        self.schema = schema
        self._read_file = read_file
        self._log = EntryLog(log)
        self._known = {entry["path"] for entry in self._log.entries()}
        self._stops = self._stopped = False

    def _find(self) -> list[Path]:
        place = Path(self._path)
        if place.is_dir():
            found = list(place.iterdir())
        elif place.exists():
            found = [place]
        else:
            root = Path(place.anchor or ".")
            found = list(root.glob(str(place.relative_to(place.anchor))))
        files = [path.absolute() for path in found if path.name[0] not in "._" and path.is_file()]
        return [path for path in files if path.as_uri() not in self._known]

    def find_end(self, start: Offset | None) -> Offset | None:
        """See `Input.find_end`. Each new file gets an entry in the log, as in Spark."""
        after = -1 if start is None else int(start["logOffset"])
        newest = self._log.newest
        if newest <= after and not self._stopped:
            times = {path: path.stat().st_mtime_ns // 1_000_000 for path in self._find()}
            new = sorted(times, key=lambda path: (times[path], path))
            if new:
                newest += 1
                entries = [
                    {"path": path.as_uri(), "timestamp": times[path], "batchId": newest} for path in new
                ]
                self._log.add(newest, entries)
                self._known |= {entry["path"] for entry in entries}
        self._stopped = self._stops
        return start if newest < 0 else {"logOffset": max(newest, after)}

    def is_new(self, start: Offset | None, end: Offset | None) -> bool:
        """See `Input.is_new`."""
        return start != end

    def files(self, start: Offset | None, end: Offset) -> Iterator[Path]:
        """Yield the files between two offsets."""
        after = -1 if start is None else int(start["logOffset"])
        for entry in self._log.entries(after, int(end["logOffset"])):
            path = local_path(entry["path"])
            if path is None:
                raise InvalidUsageError("the local engine reads only local files", file=entry["path"])
            yield path

    def read(self, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        """See `Input.read`."""
        for path in self.files(start, end):
            yield from self._read_file(path).to_batches()

    def release(self, end: Offset) -> None:
        """Do nothing: files stay."""

    def stop_at_present(self) -> None:
        """See `Input.stop_at_present`. The next `find_end` still finds files, and later calls find none."""
        self._stops = True


class PushInput:
    """Rows that the same process sends, for tests and embedding.

    The rows are kept in memory until the query commits them. After a crash of the process, the sender must
    send them again, from row number `rows` on.

    Parameters
    ----------
    schema : StructType
        The columns.
    """

    def __init__(self, schema: StructType) -> None:
        self.schema = schema
        self.arrow = as_arrow_of_spark(schema)
        self._kept: list[pa.Table] = []
        self._begin = 0
        self.rows = 0

    def send(self, rows: pa.Table) -> None:
        """Append rows that have the columns of the source."""
        self._kept.append(rows.select(self.arrow.names).cast(self.arrow))
        self.rows += rows.num_rows

    def find_end(self, start: Offset | None) -> Offset | None:
        """See `Input.find_end`."""
        return {"row": self.rows}

    def is_new(self, start: Offset | None, end: Offset | None) -> bool:
        """See `Input.is_new`."""
        return _row(end) > _row(start)

    def read(self, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        """See `Input.read`."""
        first, stop = _row(start) - self._begin, _row(end) - self._begin
        if first < 0:
            raise InvalidUsageError("rows that were sent are gone", hint="send them again after a restart")
        table = pa.concat_tables(self._kept) if self._kept else self.arrow.empty_table()
        yield from table.slice(first, stop - first).to_batches()

    def release(self, end: Offset) -> None:
        """See `Input.release`."""
        while self._kept and self._begin + self._kept[0].num_rows <= _row(end):
            self._begin += self._kept.pop(0).num_rows

    def stop_at_present(self) -> None:
        """Do nothing: rows arrive only between two micro-batches."""


def _row(offset: Offset | None) -> int:
    return 0 if offset is None else int(offset["row"])
