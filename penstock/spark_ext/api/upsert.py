"""`upsert`: keep a table up to date with the newest row of each key."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from penstock._clock import monotonic_s
from penstock.conf.arguments import check_keywords
from penstock.ddl import quote
from penstock.errors import InvalidUsageError, PenstockError, UnavailableError, redact
from penstock.operators.update_stream.options import column_names
from penstock.spark_ext.border.types import stored_schema
from penstock.units import parse_duration_us
from penstock.upserts import DELETED, Columns, UpsertTarget, newest_changes, open_target

__all__ = ["UpsertWriter", "upsert"]

_LOGGER = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 10.0


@check_keywords
def upsert(
    df: DataFrame,
    *,
    to: str,
    key: str | Sequence[str],
    time: str,
    table: str | None = None,
    delete_when: str | Column | None = None,
    forget_deletes_after: str | int | None = None,
    create: bool = False,
    patience: str = "5 minutes",
) -> DataStreamWriter:
    """Return a writer that keeps a table up to date with the newest row of each key.

    Call this function on the driver. It checks the table before anything runs. Each micro-batch is one
    transaction if the store has transactions. A row replaces the stored row of its key unless the stored row
    is newer. For equal times the later micro-batch wins. So it is harmless if Spark runs a micro-batch again.

    The rows of a micro-batch pass through the driver's memory. If the store may fall behind, put an
    `update_queue` with a budget before it.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame. If it has the column ``window`` (a struct of ``start`` and ``end``), the table
        has the columns ``window_start`` and ``window_end`` instead.
    to : str
        The store: ``postgresql://USER:PASSWORD@HOST/DATABASE``, ``mysql://...`` (also for MariaDB),
        ``sqlite:///FILE``, ``duckdb:///FILE``, ``redis://HOST``, ``delta:///DIRECTORY`` or
        ``iceberg://CATALOG``. A path is relative after three slashes and absolute after four. Messages do not
        show the password.
    key : str or sequence of str
        The columns that identify a row: the table's primary key, or the columns of a unique index.
    time : str
        The column whose greatest value is the newest: a number, a date or a timestamp.
    table : str, optional
        The table, optionally as ``schema.table``. For Redis, the prefix of the keys. Not used for Delta Lake.
    delete_when : str or Column, optional
        A SQL condition for rows that delete their key. The store remembers the time of a deletion, so that an
        older row does not bring the key back. If the condition is just a column name, such as ``"deleted"``
        after a queue with ``delete_when=``, the table leaves out this column.
    forget_deletes_after : str or int, optional
        The age at which deletions are forgotten, such as ``"30 days"``; if `time` is numeric, a number in its
        unit. The age is measured against the times in later batches, except that Redis uses its own clock.
        Once a deletion is forgotten, an older update may bring the key back. By default, deletions are
        remembered for ever.
    create : bool
        Whether to create the table if it is missing.
    patience : str
        How long to retry while the store does not answer, such as ``"5 minutes"``. After that the query ends
        with `UnavailableError`; a restart writes the micro-batch again.

    Returns
    -------
    DataStreamWriter
        The writer; add ``.option("checkpointLocation", ...)`` and a trigger, then use ``.start()`` or
        `penstock.run`.

    Raises
    ------
    InvalidUsageError
        If the address, a column or its type is wrong, a package is missing, or the table does not fit.
    UnavailableError
        If the store does not answer this call's check of the table for a minute, or for `patience` if that
        is shorter.
    """
    keys, (time,) = column_names("key", key), column_names("time", time)
    df = _split_window(df)
    flag = delete_when.lower() if isinstance(delete_when, str) else None
    fields = [field for field in stored_schema(df.schema) if field.name.lower() != flag]
    written = UpsertWriter.open(
        pa.schema(fields), to, table, keys, time,
        deletes=delete_when is not None, forget_deletes_after=forget_deletes_after,
        create=create, patience=patience,
    )  # fmt: skip

    def write(rows: DataFrame, batch_id: int) -> None:
        written.write(_collect(rows, written.columns))

    if delete_when is not None:
        condition = sf.expr(delete_when) if isinstance(delete_when, str) else delete_when
        df = df.withColumn(DELETED, condition.eqNullSafe(True))
    return df.writeStream.foreachBatch(write)


@dataclass(frozen=True)
class UpsertWriter:
    """Writes micro-batches to a table. The driver uses this object.

    Parameters
    ----------
    target : UpsertTarget
        The table.
    columns : Columns
        The columns of the table.
    patience_s : float
        How long the writer waits for the store to answer.
    """

    target: UpsertTarget
    columns: Columns
    patience_s: float

    @classmethod
    def open(
        cls,
        schema: pa.Schema,
        to: str,
        table: str | None,
        key: tuple[str, ...],
        time: str,
        *,
        deletes: bool,
        forget_deletes_after: str | int | None,
        create: bool,
        patience: str,
    ) -> UpsertWriter:
        """Check the table, or create it; see `upsert`."""
        age = forget_deletes_after
        if age is not None and not deletes:
            raise InvalidUsageError("only an upsert with deletes forgets them", hint="set delete_when")
        forget_after = timedelta(microseconds=parse_duration_us(age)) if isinstance(age, str) else age
        columns = Columns(schema, key, time, deletes, forget_after)
        patience_s = parse_duration_us(patience) / 1e6
        target = open_target(to, table, columns)
        _call_patiently(target, lambda: target.prepare(create=create), min(patience_s, 60.0))
        return cls(target, columns, patience_s)

    def write(self, rows: pa.Table) -> None:
        """Write a micro-batch's rows, with the flag `DELETED` if rows can be deleted."""
        changes = newest_changes(rows, self.columns.key, self.columns.time)
        if changes.num_rows:
            _call_patiently(self.target, lambda: self.target.write(changes), self.patience_s)


def _split_window(df: DataFrame) -> DataFrame:
    """Return rows with the start and the end of their window as two columns, which any store can hold."""
    columns: list[Column] = []
    for field in df.schema:
        column = sf.col(quote(field.name))
        is_window = isinstance(field.dataType, StructType) and field.dataType.names == ["start", "end"]
        if field.name == "window" and is_window:
            columns += [column[part].alias(f"window_{part}") for part in ("start", "end")]
        else:
            columns.append(column)
    return df.select(*columns)


def _collect(rows: DataFrame, columns: Columns) -> pa.Table:
    """Return a micro-batch's rows in the types of the table."""
    names = [*columns.names, *([DELETED] if columns.deletes else [])]
    table = rows.select(*map(quote, names)).toArrow()
    flag = [pa.field(DELETED, pa.bool_())] if columns.deletes else []
    return table.cast(pa.schema([*columns.schema, *flag]))


def _call_patiently(target: UpsertTarget, call: Callable[[], None], patience_s: float) -> None:
    """Call a store until it answers, with growing pauses between the calls.

    Raises
    ------
    UnavailableError
        If the store does not answer in time.
    InvalidUsageError
        If the store refuses the rows.
    """
    begun_s, pause_s = monotonic_s(), _FIRST_PAUSE_S
    while True:
        try:
            call()
        except PenstockError:
            raise
        except Exception as error:
            if not target.is_transient(error):
                # The text of the store's own error may hold values of the rows.
                number = next((part for part in error.args if isinstance(part, int)), "none")
                raise InvalidUsageError(
                    "the store refuses the rows",
                    table=target.name,
                    error=type(error).__name__,
                    code=getattr(error, "sqlstate", None) or number,
                    hint="compare the types and constraints of the table with the rows",
                ) from None
            reason = redact(target.describe(error))
            if monotonic_s() - begun_s + pause_s > patience_s:
                raise UnavailableError(
                    "the store does not answer", table=target.name, reason=reason
                ) from None
            _LOGGER.warning(
                "cannot write to the store, trying again [table=%s reason=%s]", target.name, reason
            )
            threading.Event().wait(pause_s)  # growing pauses, so that a starting store gets few calls
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        else:
            return
        finally:
            target.close()  # otherwise the connection would outlive the query
