"""`read_state`: the state of an update queue as a batch DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StructField,
    StructType,
)

from penstock.checkpointing import PUnit
from penstock.checkpointing.files import Files, open_files
from penstock.errors import CorruptDataError, InternalError, InvalidUsageError
from penstock.operators.conform import conform
from penstock.operators.key_queue import Policy
from penstock.operators.stream import RESERVED_PREFIX, SOURCE_COLUMN, Integers, UpdateStream
from penstock.operators.update_queue import UpdateQueue
from penstock.operators.weights import KeyWeights
from penstock.spark_ext.committed import committed_pointers, query_of, specification_of
from penstock.state_store.bucket_store import BucketStore, Pointer
from penstock.state_store.state_location import Operator, find_operators
from penstock.state_store.survey import likely_pointer

__all__ = ["read_state"]

_NEVER = np.iinfo(np.int64).min
_SIGN = np.int64(np.iinfo(np.int64).max)
_OUTPUT_BYTES = 16 << 20
_TRIES = 5

_STORED = {
    "arrived_us": LongType(),
    "rank": LongType(),
    "seen_us": LongType(),
    "interval_us": DoubleType(),
    "dequeued_us": LongType(),
    "delivered_us": LongType(),
}
"""What is stored beside a tuple, and its type; the first two only while the key waits."""

_UNKNOWN = {"seen_us": _NEVER, "interval_us": 0, "dequeued_us": 0, "delivered_us": 0}
"""What stands for nothing."""


def read_state(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    operator: str | None = None,
    query: str | None = None,
) -> DataFrame:
    """Return the state of an update queue as a batch DataFrame, one row for each key ever seen.

    The driver reads names and pointers; states are loaded in the workers, one task for each bucket.

    The columns are ``bucket`` and ``version``; the key; ``emitted``, the time of the newest tuple of the key
    that was emitted, null if none was; ``waiting``, whether a newer one waits; the other columns of the
    waiting tuple, null if none waits; and what is stored beside: ``arrived_us``, when the oldest pending
    update arrived, and ``rank``, the place in the queue (with weights, the order in which keys came), both
    null if none waits; with linecutting ``seen_us`` and ``interval_us``, with an arrival column
    ``dequeued_us`` and ``delivered_us``, null while unknown. Where the stream has a column of one of these
    names, ours begins with ``__penstock_``. Of a
    union there is also ``__penstock_source``: 0 if the waiting tuple's truth wins, else 1.

    Parameters
    ----------
    spark : SparkSession
        The session.
    path : str or path
        The state location, or the directory of a query or an operator in it.
    checkpoint : str or path, optional
        The checkpoint of the query, as Spark is given it. With it, what the newest committed micro-batch
        left is read exactly: the pointers come from Spark's own state, now. Without it, each task chooses:
        the file of the bucket's highest version if only one attempt wrote it, committed or not, else the
        newest version that files prove to be committed (`penstock.state_store.survey`). While the query
        runs, buckets may then be of different micro-batches, and each action reads anew.
    operator : str, optional
        The `name` of the update queue; needed if there are several.
    query : str, optional
        The id of the query; needed if there are several and no checkpoint is given.

    Returns
    -------
    DataFrame
        A batch DataFrame.

    Raises
    ------
    InvalidUsageError
        If no state, or more than one, fits the arguments, or it is that of another kind of operator.
    CorruptDataError
        If what describes the operator is damaged, or the checkpoint names files that are not there; what a
        task finds damaged fails the action. A query that runs may have deleted what a checkpoint named a
        while ago: read again.
    UnavailableError
        If the file system refuses.

    Examples
    --------
    >>> state = penstock.read_state(spark, "/var/lib/penstock", checkpoint="/ck")  # doctest: +SKIP
    >>> state.where("waiting").orderBy("rank").show()  # doctest: +SKIP
    """
    if checkpoint is not None:
        committed = query_of(spark, os.fspath(checkpoint))
        if query not in {None, committed}:
            raise InvalidUsageError(
                "the checkpoint is of another query", query=query, checkpoint_of=committed
            )
        query = committed
    place = _chosen(find_operators(open_files(path)), query, operator)
    if place.files is None:
        raise InvalidUsageError(
            "the path is that of one bucket", path=place.location, hint="give the operator's directory"
        )
    specification = specification_of(place.files)
    if not {"key", "time", "arrival", "policy", "schema"} <= specification.keys():
        raise InvalidUsageError("the state is not that of an update queue", location=place.location)
    if specification.get("semantics") is not None:
        raise InvalidUsageError(
            "the queue may hold several tuples of a key", semantics=specification["semantics"]
        )
    if checkpoint is None:
        chosen: list[tuple[Files, Pointer | None]] = [(bucket, None) for bucket in place.buckets]
    else:
        found = committed_pointers(spark, os.fspath(checkpoint), place.files)
        chosen = [(place.files.child(f"{bucket:05d}"), found[bucket]) for bucket in sorted(found)]
    large = spark.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    columns = _columns(specification, place.buckets)
    weight = specification.get("weight")
    stream = UpdateStream(
        to_arrow_schema(columns, timezone="UTC", prefers_large_types=large),
        tuple(specification["key"]),
        specification["time"],
        specification["arrival"],
        SOURCE_COLUMN if SOURCE_COLUMN in columns.names else None,
        weight if isinstance(weight, str) else None,
    )
    policy = Policy(specification["policy"])
    schema = _output_schema(columns, stream, policy)
    numbered = _numbered(schema)
    arrow = to_arrow_schema(numbered, timezone="UTC", prefers_large_types=large)
    # Each number is a partition of its own: one bucket a task.
    numbers = spark.range(0, len(chosen), 1, max(len(chosen), 1))
    return numbers.mapInArrow(_Reader(chosen, stream, policy, arrow, weight == 1), numbered).toDF(
        *schema.names
    )


@dataclass(frozen=True)
class _Reader:
    """The function of ``mapInArrow``: from numbers of buckets to the rows of their states, in a worker.

    Parameters
    ----------
    buckets : list of (Files, Pointer or None)
        The buckets' directories, and what to load of each; None where that is for the task to choose.
    stream, policy
        See `UpdateQueue`.
    schema : pyarrow.Schema
        The types of the rows, by position.
    by_key : bool
        Whether the queue has weights by key.
    """

    buckets: list[tuple[Files, Pointer | None]]
    stream: UpdateStream
    policy: Policy
    schema: pa.Schema
    by_key: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._rows(*self.buckets[number])

    def _rows(self, files: Files, given: Pointer | None) -> Iterator[pa.RecordBatch]:
        pointer, queue = self._loaded(files, given)
        if pointer is None:
            return
        bucket = int(files.location.partition("?")[0].rpartition("/")[2])
        for unit in queue.snapshot():
            rows = conform(self._described(unit, bucket, pointer.version), self.schema)
            pieces = max(-(-rows.nbytes // _OUTPUT_BYTES), 1)
            step = max(-(-rows.num_rows // pieces), 1)
            for begin in range(0, rows.num_rows, step):
                yield rows.slice(begin, step)

    def _loaded(self, files: Files, given: Pointer | None) -> tuple[Pointer | None, UpdateQueue]:
        """Return the state at the pointer; without one that of the likely one, chosen anew if it is gone."""
        # Places are stored with their shares; which weights they came from does not matter.
        weights = KeyWeights(self.stream, {}) if self.by_key else None
        for attempt in range(1, _TRIES + 1):
            pointer = given or likely_pointer(files)
            queue = UpdateQueue(self.stream, self.policy, weights=weights)
            if pointer is None:
                return None, queue
            try:
                BucketStore(files).load(pointer, queue)
            except CorruptDataError:
                if given is not None or attempt == _TRIES or likely_pointer(files) == pointer:
                    raise
            else:
                return pointer, queue
        raise InternalError("a bucket was neither loaded nor refused", file=files.location)

    def _described(self, unit: PUnit, bucket: int, version: int) -> pa.RecordBatch:
        """Return one row for each key of `unit`, in the order of `_output_schema`."""
        cells, rows = unit.blocks["cells"], unit.blocks["rows"]
        names = ("emitted", *_stored_beside(self.stream, self.policy))
        stored = {name: cells.column(f"{RESERVED_PREFIX}{name}").to_numpy() for name in names}
        place = np.full(cells.num_rows, -1, np.int64)
        place[rows.column(f"{RESERVED_PREFIX}cell").to_numpy()] = np.arange(rows.num_rows)
        waiting = rows.take(pa.array(place, mask=place < 0))
        columns = [
            pa.array(np.full(cells.num_rows, bucket, np.int32)),
            pa.array(np.full(cells.num_rows, version, np.int64)),
            *(cells.column(name) for name in self.stream.key),
            _times(stored.pop("emitted"), self.stream.schema.field(self.stream.time).type),
            pa.array(place >= 0),
            *(waiting.column(name) for name in self.stream.payload),
            *(waiting.column(f"{RESERVED_PREFIX}{name}") for name in ("arrived", "rank")),
            *(pa.array(values, mask=values == _UNKNOWN[name]) for name, values in stored.items()),
        ]
        return pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])


def _stored_beside(stream: UpdateStream, policy: Policy) -> list[str]:
    """Return what an update queue stores of each key, waiting or not, as `UpdateQueue` names it."""
    names = ["seen_us", "interval_us"] if policy is Policy.LINECUTTING else []
    return [*names, "dequeued_us", "delivered_us"] if stream.arrival else names


def _times(numbers: Integers, kind: pa.DataType) -> pa.Array[Any]:
    """Return times that `as_int64` made integers of, with their type again; never is null."""
    never = numbers == _NEVER
    if pa.types.is_floating(kind):
        bits = np.where(numbers < 0, numbers ^ _SIGN, numbers)
        return pa.array(bits.view(np.float64), mask=never).cast(kind)
    if pa.types.is_integer(kind):
        return pa.array(numbers, mask=never).cast(kind)
    if kind.bit_width == 32:
        numbers = numbers.astype(np.int32)
    return pa.array(numbers, mask=never).view(kind)


def _chosen(found: list[Operator], query: str | None, name: str | None) -> Operator:
    fitting = [one for one in found if query in {None, one.query} and name in {None, one.name}]
    if len(fitting) == 1:
        return fitting[0]
    raise InvalidUsageError(
        "more than one operator fits" if fitting else "no operator fits",
        query=query,
        operator=name,
        found=[f"{one.query}/{one.name}" for one in (fitting or found)],
        hint="choose one with query= and operator=",
    )


def _columns(specification: Mapping[str, Any], buckets: tuple[Files, ...]) -> StructType:
    """Return the columns of the stream with their Spark types."""
    fields = [_column(str(text)) for text in specification["schema"]]
    if None not in fields:
        return StructType([field for field in fields if field is not None])
    # Some texts cannot be parsed: names within structs are not quoted. The blocks know the types as well.
    for files in buckets:
        pointer = likely_pointer(files)
        if pointer is not None:
            _, unit = BucketStore(files).look(pointer)
            return _columns_of(unit, specification["schema"])
    raise InvalidUsageError("nothing is stored yet that tells the types of the columns")


def _columns_of(unit: PUnit, texts: list[str]) -> StructType:
    """Return the columns of a stored unit in the order of "name type" in `texts`."""
    stored = [*from_arrow_schema(unit.blocks["cells"].schema), *from_arrow_schema(unit.blocks["rows"].schema)]
    fields = [
        field for field in stored if field.name == SOURCE_COLUMN or not field.name.startswith(RESERVED_PREFIX)
    ]

    def place(field: StructField) -> int:
        return min(i for i, text in enumerate(texts) if text.startswith(f"{field.name} "))

    return StructType(sorted(fields, key=place))


def _column(text: str) -> StructField | None:
    """Return the column in "name type"; None if the type cannot be parsed. Names may have spaces."""
    at = text.find(" ")
    while at >= 0:
        name, rest = text[:at], text[at + 1 :]
        try:
            kind = DataType.fromDDL(rest)
        except PySparkException:
            kind = None
        # Two words are taken for a column of a table.
        if kind is not None and (not isinstance(kind, StructType) or rest.startswith("struct<")):
            return StructField(name, kind)
        at = text.find(" ", at + 1)
    return None


def _output_schema(columns: StructType, stream: UpdateStream, policy: Policy) -> StructType:
    """Return the columns of the result."""
    taken = {name.lower() for name in columns.names}

    def ours(name: str, kind: DataType) -> StructField:
        return StructField(f"{RESERVED_PREFIX}{name}" if name in taken else name, kind)

    return StructType([
        ours("bucket", IntegerType()),
        ours("version", LongType()),
        *(StructField(name, columns[name].dataType) for name in stream.key),
        ours("emitted", columns[stream.time].dataType),
        ours("waiting", BooleanType()),
        *(StructField(name, columns[name].dataType) for name in stream.payload),
        *(
            ours(name, _STORED[name])
            for name in ("arrived_us", "rank", *_stored_beside(stream, policy))
        ),
    ])  # fmt: skip


def _numbered(schema: StructType) -> StructType:
    """Return `schema` with names that Spark's Arrow functions find: names with dots they do not."""
    return StructType([StructField(f"c{i}", field.dataType) for i, field in enumerate(schema)])
