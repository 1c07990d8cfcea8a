"""Read a p-stream for transactions, so that no row crosses to the JVM before its transaction has run.

With one bucket, a reader's task only passes on the location of its rows, and the bucket's task reads them.
With several buckets the reader packs rows into parcels for their buckets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.checkpointing.files import Files
from penstock.checkpointing.p_stream import Piece, PStream, read_blocks
from penstock.operators.update_stream.arrivals import first_position
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.connection import p_stream_options
from penstock.spark_ext.border.packing import parcel_row
from penstock.spark_ext.border.parcels import PARCELS, to_parcels
from penstock.spark_ext.border.transaction_packing import TransactionPacker
from penstock.spark_ext.border.types import as_arrow_of_spark, convert
from penstock.spark_ext.sources.pushed import Columns
from penstock.windows.map_ordered import map_ordered

if TYPE_CHECKING:
    from penstock.compression import TableBlock

__all__ = ["PieceReader", "TransactionScan", "parcels_of_p_stream"]

_POSITION = "position"
_THREADS = 2
"""The kernel runs in one thread; the other thread decodes the next p-units."""


@dataclass(frozen=True)
class TransactionScan:
    """The work of a reader's task for transactions. The driver makes this object; workers use it.

    Parameters
    ----------
    columns : Columns
        The columns to read.
    packer : TransactionPacker, optional
        Packs rows for their buckets; None if there is one bucket, whose task reads the rows.
    """

    columns: Columns
    packer: TransactionPacker | None

    @property
    def spark(self) -> StructType:
        """The columns of the output."""
        return PARCELS

    @classmethod
    def parse(cls, stored: pa.Schema, text: str) -> TransactionScan:
        """Return the scan of the option ``transactions``."""
        fields: dict[str, Any] = json.loads(text)
        read = StructType.fromJson(fields["columns"])
        columns = Columns(tuple(read.names), read)
        if fields["buckets"] == 1:
            return cls(columns, None)
        packer = TransactionPacker(
            as_arrow_of_spark(columns.spark),
            tuple(fields["needed"]),
            fields["time"],
            fields["route"],
            fields["buckets"],
            wakes=fields["wakes"],
        )
        return cls(columns, packer)

    def run(
        self, segments: Files, stored: pa.Schema, pieces: Sequence[Piece], part: int
    ) -> Iterator[pa.RecordBatch]:
        """Return the parcels of a task, which is number `part` of its micro-batch."""
        if self.packer is not None:
            yield from self.packer(self.columns.run(read_blocks(segments, pieces, stored)))
        elif pieces:
            rows = [
                {_POSITION: first_position(part) + place, **asdict(piece)}
                for place, piece in enumerate(pieces)
            ]
            for parcel in to_parcels([pa.RecordBatch.from_pylist(rows)]):
                yield parcel_row(bucket_labels(1)[0], 0, parcel)


@dataclass(frozen=True)
class PieceReader:
    """Reads rows from the locations that readers passed on. The driver makes this object; workers use it.

    Parameters
    ----------
    segments : Files
        The segments of the p-stream.
    stored : pyarrow.Schema
        The columns of the p-stream.
    columns : Columns
        The needed columns, and the time.
    """

    segments: Files
    stored: pa.Schema
    columns: Columns

    def rows(self, parcels: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows of a micro-batch in the order of the p-stream, a p-unit at a time.

        Raises
        ------
        CorruptDataError
            If a p-unit is damaged or missing.
        """
        places = [row for parcel in parcels for row in parcel.to_pylist()]
        places.sort(key=lambda row: int(row.pop(_POSITION)))
        schema = as_arrow_of_spark(self.columns.spark)

        def decode(pieces: tuple[Piece, TableBlock]) -> pa.RecordBatch:
            piece, block = pieces
            return convert(block.read(self.columns.names, piece.first, piece.stop), schema)

        blocks = read_blocks(self.segments, [Piece(**row) for row in places], self.stored)
        yield from map_ordered(decode, blocks, _THREADS)


def parcels_of_p_stream(df: DataFrame, packer: TransactionPacker) -> tuple[DataFrame, PieceReader] | None:
    """Return the parcels of a p-stream's rows, and the reader of rows that bypass the parcels.

    Return None if `df` does more than select columns of a p-stream under their own names.
    """
    options = p_stream_options(df)
    if options is None or "transactions" in options:
        return None
    # A graph may read columns through a scan that only selects columns.
    if json.loads(options.pop("scan", '{"columns": []}')).keys() != {"columns"}:
        return None
    stream = PStream(options["path"])
    # Spark names a column as the user wrote it in the selection, which may differ in case.
    names = tuple(dict.fromkeys([*packer.needed, *([] if packer.time is None else [packer.time])]))
    if not set(names) <= set(stream.schema.names):
        return None
    columns = Columns(names, StructType([df.schema[name] for name in names]))
    given = {
        "needed": packer.needed,
        "columns": columns.spark.jsonValue(),
        "time": packer.time,
        "route": packer.route,
        "buckets": packer.buckets,
        "wakes": packer.wakes,
    }
    options |= {"transactions": json.dumps(given)}
    options.pop("columns", None)
    parcels = df.sparkSession.readStream.format("pstream").options(**options).load()
    return parcels, PieceReader(stream.segments, stream.schema, columns)
