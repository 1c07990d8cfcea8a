"""`read_state`: the state of a stateful operator as a batch DataFrame."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from penstock.checkpointing import PUnit
from penstock.checkpointing.files import Files, open_files
from penstock.conf.arguments import check_keywords
from penstock.errors import CorruptDataError, InternalError, InvalidUsageError, PenstockError
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.spark_ext.border.spark_versions import as_arrow_schema
from penstock.spark_ext.state_reader.committed import committed_pointers, query_of, specification_of
from penstock.spark_ext.state_reader.join_view import join_view
from penstock.spark_ext.state_reader.own_view import own_view
from penstock.spark_ext.state_reader.queue_view import queue_view
from penstock.spark_ext.state_reader.state_view import StateView, Stored
from penstock.spark_ext.state_reader.table_view import TableView, table_view
from penstock.spark_ext.state_reader.window_view import sides_view, window_view
from penstock.spark_ext.worker.bucket_task import SPECIFICATION_FILE
from penstock.spark_ext.worker.python_workers import prepare_workers
from penstock.state_store.bucket_store import BucketStore, Pointer, State
from penstock.state_store.location import Operator, find_operators
from penstock.state_store.survey import likely_pointer

__all__ = ["read_state"]

_OUTPUT_BYTES = 16 << 20
_MAX_ATTEMPTS = 5

_VIEWS: tuple[tuple[set[str], Callable[[Stored, str | None], StateView]], ...] = (
    ({"program", "tables"}, table_view),
    ({"operator", "output"}, own_view),
    ({"sides"}, sides_view),
    ({"mode", "window", "aggregates"}, window_view),
    ({"key", "time", "within", "left", "right"}, join_view),
    ({"key", "time", "arrival", "policy", "schema"}, queue_view),
)
"""A key of the specification, and the view, for each kind of operator."""


@check_keywords
def read_state(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    operator: str | None = None,
    query: str | None = None,
    table: str | None = None,
) -> DataFrame:
    """Return the state of a stateful operator as a batch DataFrame.

    The driver reads names and pointers; states are loaded in the workers, one task for each bucket.

    The first columns are ``bucket`` and ``version``. An update queue has one row for each key ever seen. Its
    columns are the key; ``emitted``, the time of the key's newest emitted tuple, or null; ``waiting``,
    whether a newer tuple waits; and the other columns of the waiting tuple, null if none waits. Next come
    ``arrived_us``, the arrival of the oldest pending update, and ``rank``, the position in the queue. With
    weights, ``rank`` is the order in which keys arrived. Both are null if no tuple waits. The policies
    linecutting and freshest add ``seen_us`` and ``interval_us``. An arrival column adds ``dequeued_us`` and
    ``delivered_us``, which are null while unknown. A union also has ``__penstock_source``: 0 if the waiting
    tuple is from the preferred input, otherwise 1.

    Other operators have several tables, from which `table` chooses; ``docs/how-to/inspect.md`` lists their
    columns. If a stream has a column of the same name, Penstock's column gets the prefix ``__penstock_``.

    Parameters
    ----------
    spark : SparkSession
        The session.
    path : str or path
        The state location, or the directory of a query or an operator in it.
    checkpoint : str or path, optional
        The checkpoint of the query, as given to Spark. The directory of a graph or pipeline means the
        checkpoint of the query that makes its results. If given, the result is exactly the state of the
        newest committed micro-batch, and its pointers are read from Spark's own state during this call. If
        not given, each task chooses a version of its bucket. If only one attempt wrote the highest version,
        the task chooses that version, committed or not. Otherwise it chooses the newest version that the
        files prove to be committed (`penstock.state_store.survey`). If the query runs meanwhile, the buckets'
        versions may belong to different micro-batches, and each action reads the state again.
    operator : str, optional
        The `name` of the operator; needed if there are several.
    query : str, optional
        The id of the query; needed if there are several and no checkpoint is given.
    table : str, optional
        The table of the operator; needed if it has several. The tables are

        - of queues with append or adaptive semantics: ``keys`` and ``appended``;
        - of windows: ``panes``; in lazy or eager mode also ``keys`` and ``settled``; of windows of rows also
          ``rows`` and ``counts``;
        - of joins: ``keys`` and ``held``; of joins of windows: ``left`` and ``right``;
        - of transactions: the tables of the database;
        - of user-defined operators: the tables of the operator's `snapshot`.

    Returns
    -------
    DataFrame
        A batch DataFrame.

    Raises
    ------
    InvalidUsageError
        If the arguments fit no state, or more than one; if the table is missing or unknown; or if nothing is
        stored yet, so that the types of the columns are unknown.
    CorruptDataError
        If the operator's description is damaged, or the checkpoint names missing files. If a task finds
        damage, the action fails. A running query may also have deleted files that the checkpoint names; then
        call `read_state` again.
    UnavailableError
        If the file system refuses.

    Examples
    --------
    >>> state = penstock.read_state(spark, "/var/lib/penstock", checkpoint="/ck")  # doctest: +SKIP
    >>> state.where("waiting").orderBy("rank").show()  # doctest: +SKIP
    """
    prepare_workers(spark)
    if checkpoint is not None:
        committed, checkpoint = query_of(spark, os.fspath(checkpoint))
        if query not in {None, committed}:
            raise InvalidUsageError(
                "the checkpoint belongs to another query", query=query, checkpoint_of=committed
            )
        query = committed
    place = _choose_operator(find_operators(open_files(path)), query, operator)
    if place.files is None:
        raise InvalidUsageError(
            "the path is the directory of one bucket",
            path=place.location,
            hint="give the operator's directory",
        )
    specification = specification_of(place.files)
    if checkpoint is None:
        places: list[tuple[Files, Pointer | None]] = [(bucket, None) for bucket in place.buckets]
    else:
        pointers = committed_pointers(spark, checkpoint, place.files)
        places = [(place.files.child(f"{bucket:05d}"), pointers[bucket]) for bucket in sorted(pointers)]
    large = spark.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    stored = Stored(specification, functools.partial(_newest_unit, places), large)
    try:
        view = _view(stored, table, place.location)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, PenstockError):
            raise
        # A damaged specification may fail in any of the functions that read its nested values.
        file = place.files.path_of(SPECIFICATION_FILE)
        raise CorruptDataError("the file describes no operator", file=file) from error
    if isinstance(view, TableView) and view.is_copied:
        places = places[:1]
    numbered = _number_columns(view.schema)
    arrow = as_arrow_schema(numbered, large=large)
    # Each number is a separate partition, so each task reads one bucket.
    numbers = spark.range(0, len(places), 1, max(len(places), 1))
    return numbers.mapInArrow(_Reader(places, view, arrow), numbered).toDF(*view.schema.names)


@dataclass(frozen=True)
class _Reader:
    """Reads the rows of buckets' states, given the buckets' numbers, for ``mapInArrow``, in a worker.

    Parameters
    ----------
    buckets : list of (Files, Pointer or None)
        The directory of each bucket, and the pointer to load; with None, the task chooses a version.
    view : StateView
        The view of the state.
    schema : pyarrow.Schema
        The types of the rows, by position.
    """

    buckets: list[tuple[Files, Pointer | None]]
    view: StateView
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._rows(*self.buckets[number])

    def _rows(self, files: Files, given: Pointer | None) -> Iterator[pa.RecordBatch]:
        pointer, state = self._load(files, given)
        if pointer is None:
            return
        bucket = int(files.location.partition("?")[0].rpartition("/")[2])
        for unit in state.snapshot():
            columns = self.view.rows(state, unit)
            if columns is None:
                continue
            rows = self._add_place(bucket, pointer.version, columns)
            pieces = max(-(-rows.nbytes // _OUTPUT_BYTES), 1)
            step = max(-(-rows.num_rows // pieces), 1)
            for begin in range(0, rows.num_rows, step):
                yield rows.slice(begin, step)

    def _add_place(self, bucket: int, version: int, columns: list[pa.Array[Any]]) -> pa.RecordBatch:
        count = len(columns[0])
        placed = [pa.array(np.full(count, number, np.int64)) for number in (bucket, version)]
        names = [str(number) for number in range(len(columns) + len(placed))]
        return cast_to_schema(pa.RecordBatch.from_arrays([*placed, *columns], names), self.schema)

    def _load(self, files: Files, given: Pointer | None) -> tuple[Pointer | None, State]:
        """Return the state at the given pointer, or at a chosen pointer whose files exist."""
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            pointer = given or likely_pointer(files)
            state = self.view.new_state()
            if pointer is None:
                return None, state
            try:
                BucketStore(files).load(pointer, state)
            except CorruptDataError:
                if given is not None or attempt == _MAX_ATTEMPTS or likely_pointer(files) == pointer:
                    raise
            else:
                return pointer, state
        raise InternalError("a bucket was neither loaded nor refused", file=files.location)


def _view(stored: Stored, table: str | None, location: str) -> StateView:
    for field, view in _VIEWS:
        if field <= stored.specification.keys():
            return view(stored, table)
    raise InvalidUsageError("the state belongs to an unknown kind of operator", location=location)


def _newest_unit(buckets: list[tuple[Files, Pointer | None]]) -> PUnit | None:
    """Return the newest unit of the first bucket that has units."""
    for files, given in buckets:
        pointer = given or likely_pointer(files)
        if pointer is not None:
            return BucketStore(files).read_version(pointer)[1]
    return None


def _choose_operator(operators: list[Operator], query: str | None, name: str | None) -> Operator:
    fitting = [
        operator
        for operator in operators
        if query in {None, operator.query} and name in {None, operator.name}
    ]
    if len(fitting) == 1:
        return fitting[0]
    raise InvalidUsageError(
        "more than one operator matches" if fitting else "no operator matches",
        query=query,
        operator=name,
        found=[f"{operator.query}/{operator.name}" for operator in (fitting or operators)],
        hint="choose one with query= and operator=",
    )


def _number_columns(schema: StructType) -> StructType:
    """Return `schema` with numbers as names, because Spark's Arrow functions do not find names with dots."""
    return StructType([StructField(f"c{i}", field.dataType) for i, field in enumerate(schema)])
