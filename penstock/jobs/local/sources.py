"""Open the sources and tables of a pipeline on the local engine."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.conf.pipeline import FilesSource, KafkaSource, MarketSource, Source, TableSection
from penstock.errors import InternalError, InvalidUsageError
from penstock.jobs.local.late_decoding import EncodedRecords, encoded_schema
from penstock.jobs.pipelines.schemas import encoding_of, schema_of
from penstock.local_engine.inputs import DataSourceInput, FilesInput, Input
from penstock.local_engine.records.bad_records import BadRecords
from penstock.local_engine.records.whole_files import file_reader
from penstock.spark_ext.border.types import as_arrow_of_spark, spark_schema
from penstock.spark_ext.sources.market import MarketDataSource

__all__ = ["open_source", "read_table", "resolve_path"]


def resolve_path(location: str) -> str:
    """Make a local path absolute; leave a location with a file system unchanged."""
    return location if "://" in location else str(Path(location).absolute())


def open_source(source: Source, place: str, zone: str, log: Path, *, decodes_late: bool = False) -> Input:
    """Open a source other than a p-stream.

    Parameters
    ----------
    source : Source
        The source.
    place : str
        The source's name in the pipeline, under which bad records are rejected.
    zone : str
        The time zone of times that have no zone.
    log : pathlib.Path
        The directory for the log of the source.
    decodes_late : bool
        Whether Kafka's values are decoded after the queue, not by this source.

    Raises
    ------
    InvalidUsageError
        If only Spark can read the source, or a package is missing.
    UnavailableError
        If the source's brokers or schema registry do not answer.
    """
    if isinstance(source, MarketSource):
        return _open_market(source)
    if isinstance(source, FilesSource):
        return _open_files(source, place, zone, log)
    if isinstance(source, KafkaSource):
        return _open_kafka(source, place, zone, log, decodes_late=decodes_late)
    raise InternalError("a source passed the check of the local engine", source=source.type)


def _open_market(source: MarketSource) -> Input:
    values = {
        "rowsPerSecond": source.rows_per_second, "symbols": source.symbols, "skew": source.skew,
        "seed": source.seed, "numPartitions": 1, "startTime": source.start_time,
        "maxRowsPerTrigger": source.max_rows_per_trigger, "rows": source.rows,
        "realTime": str(source.real_time).lower(),
    }  # fmt: skip
    options = {name: str(value) for name, value in values.items() if value is not None}
    schema = spark_schema(schema_of(source))
    return DataSourceInput(MarketDataSource(options).local_reader(), schema)


def _bad_records(source: FilesSource | KafkaSource, place: str, log: Path) -> BadRecords:
    to = None if source.reject_to is None else resolve_path(source.reject_to)
    return BadRecords(place, source.on_error, to, str(log.parents[1]))  # CHECKPOINT/sources/<number>


def _open_files(source: FilesSource, place: str, zone: str, log: Path) -> Input:
    schema, path = spark_schema(schema_of(source)), resolve_path(source.path)
    if source.counts_bad_records:
        from penstock.local_engine.records.files import RecordFilesInput  # only for CSV and JSON

        bad_records = _bad_records(source, place, log)
        return RecordFilesInput(path, schema, log, source.format, source.options, zone, bad_records)
    return FilesInput(
        path, schema, file_reader(source.format, as_arrow_of_spark(schema), source.options, zone), log
    )


def _open_kafka(source: KafkaSource, place: str, zone: str, log: Path, *, decodes_late: bool) -> Input:
    # The client of Kafka is an extra.
    from penstock.local_engine.records.kafka import KafkaInput
    from penstock.local_engine.records.kafka_values import RecordDecoder

    bad_records = _bad_records(source, place, log)
    if decodes_late:
        schema = spark_schema(encoded_schema(source))
        return KafkaInput(source.options, schema, EncodedRecords(source), bad_records, log)
    schema = spark_schema(schema_of(source))
    decoder = RecordDecoder(source, as_arrow_of_spark(schema), zone, **encoding_of(source))
    return KafkaInput(source.options, schema, decoder, bad_records, log)


def read_table(section: TableSection, zone: str) -> pa.Table:
    """Return the rows of a static table.

    Raises
    ------
    InvalidUsageError
        If the table has no files, or the files do not fit the schema.
    """
    schema = as_arrow_of_spark(spark_schema(schema_of(section)))
    read = file_reader(section.format, schema, section.options, zone)
    place = Path(section.path)
    found = sorted(place.iterdir()) if place.is_dir() else [place]
    files = [path for path in found if path.name[0] not in "._" and path.is_file()]
    if not files:
        raise InvalidUsageError("the table has no files", path=section.path)
    return pa.concat_tables(map(read, files))
