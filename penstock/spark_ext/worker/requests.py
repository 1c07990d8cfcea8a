"""Requests to a stream of transactions: how they reach the buckets, and how answers reach clients.

Requests travel like events: Spark plans the requests of a micro-batch, and parcels carry them to their
buckets. In a bucket, requests run before the events of the micro-batch. So Spark's offset log determines the
order of requests and events, and a micro-batch that runs again gives the same answers.

The task of a bucket publishes the answers itself, so the query may have any sink. The order of a
micro-batch's requests and events is durable before the answers are visible. A bucket's writer publishes the
answers in one commit, with the micro-batch's number. A later attempt finds this commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from penstock.checkpointing.files import absolute_location
from penstock.checkpointing.p_stream import PStream
from penstock.operators.update_stream.arrivals import first_position
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.procedures.compiler.program import event_schema
from penstock.procedures.requests.client import REQUESTS_PLACE, request_streams
from penstock.procedures.requests.messages import REQUESTS, decode_values
from penstock.procedures.requests.programs import RequestPrograms
from penstock.procedures.requests.run import REMEMBERED
from penstock.procedures.workflows.catalog import Catalog
from penstock.spark_ext.api.register import register
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.packing import mark_side, parcel_row
from penstock.spark_ext.border.parcels import PARCELS, to_parcels
from penstock.spark_ext.border.transaction_packing import bucket_of_values
from penstock.spark_ext.sources.p_stream_options import WriteOptions
from penstock.spark_ext.sources.p_stream_rows import SegmentRows
from penstock.spark_ext.sources.task_rows import TaskRows

__all__ = [
    "REQUEST_SIDE",
    "AnswerWriter",
    "Answers",
    "OpenRequests",
    "PlannedRequests",
    "RequestPacker",
    "answer_writer",
    "sort_requests",
]

REQUEST_SIDE = "requests"
"""The side of a parcel that has requests."""

_POSITION = f"{RESERVED_PREFIX}position"
_KEPT = "kept"
"""The name of a subscription without a reader, which keeps the newest answers."""


@dataclass(frozen=True)
class PlannedRequests:
    """The requests of a query. The driver makes this object.

    Parameters
    ----------
    parcels : DataFrame
        The parcels of the requests, for a union with the parcels of the events.
    programs : RequestPrograms
        The procedures that requests may call.
    answers : Answers
        Takes the answers.
    """

    parcels: DataFrame
    programs: RequestPrograms
    answers: Answers

    @staticmethod
    def plan(
        spark: SparkSession,
        location: str | os.PathLike[str],
        catalog: Catalog,
        buckets: int,
        route: pa.DataType | None,
        name: str,
    ) -> PlannedRequests:
        """Plan requests.

        Parameters
        ----------
        spark : SparkSession
            The session.
        location : str or path
            The location of the p-streams of requests and answers, which are created if they do not exist.
        catalog : Catalog
            The content of the database.
        buckets : int
            The number of buckets.
        route : pyarrow.DataType, optional
            The type of the attribute that chooses the bucket of an event, if there are several buckets.
        name : str
            The operator's name, under which the query reads requests.

        Raises
        ------
        InvalidUsageError
            If the location holds something else.
        CorruptDataError, UnavailableError
            If the p-streams' files are damaged, or the file system refuses.
        """
        register(spark)
        opened = OpenRequests.open(location, catalog, buckets, route)
        read = spark.readStream.format("pstream").option("reader", name).load(opened.location)
        return PlannedRequests(
            read.mapInArrow(opened.packer, PARCELS), opened.packer.programs, opened.answers
        )


@dataclass(frozen=True)
class OpenRequests:
    """The p-streams of requests and answers, without a reader.

    Parameters
    ----------
    location : str
        The p-stream of the requests.
    packer : RequestPacker
        Packs the requests.
    answers : Answers
        Takes the answers.
    """

    location: str
    packer: RequestPacker
    answers: Answers

    @staticmethod
    def open(
        location: str | os.PathLike[str],
        catalog: Catalog,
        buckets: int,
        route: pa.DataType | None,
        answers: Answers | None = None,
    ) -> OpenRequests:
        """Open the p-streams of requests and answers; see `PlannedRequests.plan`.

        If `answers` is given, nothing is created, and the p-stream of requests must exist.
        """
        place = absolute_location(location).rstrip("/")
        packer = RequestPacker(RequestPrograms.collect(catalog, buckets, route), buckets, route)
        if answers is not None:
            return OpenRequests(PStream(f"{place}/{REQUESTS_PLACE}").files.location, packer, answers)
        requests, stream = request_streams(place)
        rows = SegmentRows(WriteOptions.parse({"path": stream.files.location}), stream)
        writer = AnswerWriter(TaskRows(stream.files.location, rows), buckets)
        return OpenRequests(requests.files.location, packer, writer)


@dataclass(frozen=True)
class RequestPacker:
    """The map side of requests, for ``mapInArrow``. Each request goes to the bucket of its event.

    Parameters
    ----------
    programs : RequestPrograms
        The procedures that requests may call. Requests for any other procedure, or with wrong arguments, go
        to the first bucket.
    buckets : int
        The number of buckets.
    route : pyarrow.DataType, optional
        The type of the attribute that chooses the bucket of an event, if there are several buckets.
    """

    programs: RequestPrograms
    buckets: int
    route: pa.DataType | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the parcels of one partition's requests."""
        context = TaskContext.get()
        position = first_position(context.partitionId() if context else 0)
        labels = bucket_labels(self.buckets)
        for batch in batches:
            rows = cast_to_schema(batch, REQUESTS)
            places = pa.array(np.arange(position, position + rows.num_rows, dtype=np.int64))
            position += rows.num_rows
            bucket = self._buckets(rows)
            placed = mark_side(rows.append_column(_POSITION, places), REQUEST_SIDE)
            for number in np.unique(bucket):
                for parcel in to_parcels([placed.filter(pa.array(bucket == number))]):
                    yield parcel_row(labels[int(number)], 0, parcel)

    def _buckets(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        buckets = np.zeros(rows.num_rows, np.int64)
        if self.buckets == 1 or self.route is None:
            return buckets
        called = np.array(rows.column("procedure").to_pylist(), object)
        arguments = rows.column("arguments").to_pylist()
        for procedure in set(called):
            attribute = self.programs.route(procedure)
            if attribute is None:
                continue
            places = np.flatnonzero(called == procedure)
            schema = event_schema(self.programs.programs[procedure].event)
            events, misfits = decode_values([arguments[place] for place in places], schema)
            fitting = np.delete(places, misfits)
            values = events.column(attribute).cast(self.route, safe=False)
            buckets[fitting] = bucket_of_values(values, self.buckets)
        return buckets


def sort_requests(parcels: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the requests of a bucket's parcels in their order."""
    rows = pa.Table.from_batches([one.replace_schema_metadata(None) for one in parcels])
    return rows.sort_by(_POSITION).drop_columns([_POSITION]).combine_chunks().to_batches()[0]


class Answers(Protocol):
    """Takes the answers of buckets."""

    def publish(self, answers: pa.RecordBatch, query: str, batch: int, bucket: int) -> None:
        """Take a bucket's answers to the requests of a micro-batch."""


@dataclass(frozen=True)
class AnswerWriter:
    """Publishes the answers of a bucket. The driver makes this object; workers use it.

    Parameters
    ----------
    rows : TaskRows
        Commits the rows.
    buckets : int
        The number of buckets.
    """

    rows: TaskRows
    buckets: int

    def publish(self, answers: pa.RecordBatch, query: str, batch: int, bucket: int) -> None:
        """Make answers of a micro-batch durable and visible, unless another attempt has done so.

        Raises
        ------
        CorruptDataError, UnavailableError
            See `TaskRows.commit`.
        """
        stream = self.rows.commit([answers], answer_writer(query, bucket), batch, bucket)
        if stream is not None:
            stream.subscribe(_KEPT)
            stream.trim_from(_KEPT, max(stream.end - REMEMBERED * self.buckets, stream.start))


def answer_writer(query: str, bucket: int) -> str:
    """Return the name under which a bucket of a query writes its answers."""
    return f"{query}-{bucket}"
