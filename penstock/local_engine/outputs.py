"""The sinks of a local query. If a micro-batch runs again, its rows are not added a second time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from penstock import _durable
from penstock._clock import now_us
from penstock.checkpointing.spark_checkpoint import make_durable
from penstock.errors import InvalidUsageError
from penstock.local_engine.query_log import EntryLog
from penstock.spark_ext.api.upsert import UpsertWriter
from penstock.spark_ext.border.types import as_arrow_of_spark, stored_schema
from penstock.spark_ext.sources.p_stream_options import WriteOptions
from penstock.spark_ext.sources.p_stream_sink import StreamWriter
from penstock.sql.evaluate import evaluate, type_of
from penstock.sql.expression import Expression
from penstock.upserts import DELETED
from penstock.upserts.arrow_columns import split_window

__all__ = [
    "ConsoleOutput",
    "MemoryOutput",
    "NoOutput",
    "Output",
    "PStreamOutput",
    "ParquetOutput",
    "UpsertOutput",
]


class Output(Protocol):
    """A sink. It gets all results of a micro-batch in one call, before the micro-batch is committed."""

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        """Write the results of a query's micro-batch; a second call for a micro-batch changes nothing."""


class NoOutput:
    """Drops all rows."""

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        """See `Output.write`."""
        for _ in rows:
            pass


@dataclass
class MemoryOutput:
    """Keeps the rows of each micro-batch in memory."""

    schema: pa.Schema
    batches: dict[int, pa.Table] = field(default_factory=dict)

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        """See `Output.write`."""
        self.batches[batch] = pa.Table.from_batches(list(rows), self.schema)

    def table(self) -> pa.Table:
        """Return all rows, in the order of the micro-batches."""
        return pa.concat_tables([self.schema.empty_table(), *self.batches.values()])


@dataclass(frozen=True)
class ConsoleOutput:
    """Prints the first rows of each micro-batch. Rows of a micro-batch that runs again are printed again.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns.
    rows : int
        The maximum number of rows to print.
    truncate : bool
        Whether values are cut after 20 characters.
    file : text file, optional
        The file to print to; by default standard output.
    """

    schema: pa.Schema
    rows: int = 20
    truncate: bool = False
    file: TextIO | None = None

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        """See `Output.write`."""
        table = pa.Table.from_batches(list(rows), self.schema)
        if not table.num_rows:
            return
        shown = table.slice(0, self.rows)
        texts = [self._texts(shown.column(name)) for name in table.column_names]
        widths = [
            max(map(len, [name, *column])) for name, column in zip(table.column_names, texts, strict=True)
        ]
        lines = [table.column_names, *map(list, zip(*texts, strict=True))]
        bar = "+" + "+".join("-" * width for width in widths) + "+"
        text = [f"batch {batch}", bar]
        for number, line in enumerate(lines):
            cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            text += ["|" + "|".join(cells) + "|", *([bar] if number == 0 else [])]
        text.append(bar)
        if table.num_rows > self.rows:
            text.append(f"only the first {self.rows} of {table.num_rows:,} rows")
        print("\n".join(text), file=self.file or sys.stdout, flush=True)

    def _texts(self, column: pa.ChunkedArray) -> list[str]:
        most = 20
        texts = list(map(_shown, column.to_pylist()))
        if not self.truncate:
            return texts
        return [text if len(text) <= most else f"{text[: most - 3]}..." for text in texts]


def _shown(value: Any) -> str:
    """Return a value as Spark's console shows it; unlike Spark's console, show the zone of a time."""
    if value is None:
        return "NULL"
    if isinstance(value, dict):
        return "{" + ", ".join(map(_shown, value.values())) + "}"
    if isinstance(value, list) and value and all(isinstance(pair, tuple) for pair in value):
        return "{" + ", ".join(f"{_shown(key)} -> {_shown(one)}" for key, one in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)


class PStreamOutput:
    """Appends each micro-batch to a p-stream as one commit, like the sink on Spark.

    Parameters
    ----------
    options : mapping of str to str
        The options of the data source ``pstream``, with the path.
    schema : StructType
        The columns.
    checkpoint : str
        The query's checkpoint.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, checkpoint: str) -> None:
        parsed = WriteOptions.parse({**options, "checkpointLocation": checkpoint})
        self._writer = StreamWriter(parsed, schema, overwrite=False, in_one_process=True)

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        """See `Output.write`."""
        self._writer.commit([self._writer.write_rows(rows, query, batch, 0)], batch)


class ParquetOutput:
    """Writes a file for each micro-batch, and the log from which Spark reads the list of files.

    Parameters
    ----------
    path : str
        The directory.
    schema : pyarrow.Schema
        The columns.
    checkpoint : str
        The query's checkpoint.
    """

    def __init__(self, path: str, schema: pa.Schema, checkpoint: str) -> None:
        self._path = Path(path).absolute()
        self._schema = schema
        self._checkpoint = checkpoint
        self._log = EntryLog(self._path / "_spark_metadata")

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        """See `Output.write`."""
        table = pa.Table.from_batches(list(rows), self._schema)
        if batch <= self._log.newest:
            return
        _durable.make_directory(self._path, mode=0o777)  # less the umask, as Spark does
        entries = []
        if table.num_rows:
            file = self._path / f"part-{batch:05}-{query}.parquet"
            temporary = file.with_name(f"_{file.name}.tmp")
            pq.write_table(table, temporary)
            _durable.replace(file, temporary)
            entries.append(
                {
                    "path": file.as_uri(),
                    "size": file.stat().st_size,
                    "isDir": False,
                    "modificationTime": now_us() // 1000,
                    "blockReplication": 1,
                    "blockSize": 32 << 20,
                    "action": "add",
                }
            )
        make_durable(str(self._path))
        for number in range(self._log.newest + 1, batch):
            self._log.add(number, [])  # the micro-batch had no rows
        self._log.add(batch, entries)


class UpsertOutput:
    """Keeps a table of a store up to date; see `penstock.upsert`.

    Parameters
    ----------
    schema : StructType
        The columns of the results.
    delete_when : str, optional
        An SQL condition for rows that delete their key.
    **options
        The other arguments of `penstock.upsert`.
    """

    def __init__(
        self,
        schema: StructType,
        *,
        to: str,
        table: str | None,
        key: tuple[str, ...],
        time: str,
        delete_when: str | None,
        forget_deletes_after: str | int | None,
        create: bool,
        patience: str,
    ) -> None:
        self._schema = as_arrow_of_spark(schema)
        self._deletes = None if delete_when is None else Expression.parse(delete_when)
        split = split_window(self._schema.empty_table())
        if self._deletes is not None and type_of(self._deletes, split.schema) != pa.bool_():
            raise InvalidUsageError(
                "the local engine cannot evaluate delete_when",
                delete_when=delete_when,
                hint="write a condition that the local engine can evaluate, or use engine: spark",
            )
        flag = None if delete_when is None else delete_when.lower()
        stored = split_window(stored_schema(schema).empty_table())
        fields = [field for field in stored.schema if field.name.lower() != flag]
        self._writer = UpsertWriter.open(
            pa.schema(fields), to, table, key, time,
            deletes=delete_when is not None, forget_deletes_after=forget_deletes_after,
            create=create, patience=patience,
        )  # fmt: skip

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        """See `Output.write`."""
        table = split_window(pa.Table.from_batches(list(rows), self._schema))
        if not table.num_rows:
            return
        flags = None if self._deletes is None else evaluate(self._deletes, table)
        columns = self._writer.columns
        chosen = table.select(list(columns.names)).cast(columns.schema)
        if flags is not None:
            chosen = chosen.append_column(DELETED, pc.fill_null(flags, False))
        self._writer.write(chosen)
