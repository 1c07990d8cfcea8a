"""A pipeline's sources and tables as DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from penstock.conf.pipeline import (
    FilesSource,
    KafkaSource,
    MarketSource,
    Pipeline,
    PStreamSource,
    RateSource,
    Source,
    SparkSource,
    TableSection,
)
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.graph import OTHER, SOURCE, TABLE
from penstock.jobs.pipelines.schemas import encoding_of
from penstock.spark_ext.api.bad_records import (
    BAD_RECORD,
    count_bad_records,
    json_reason,
    reject_bad_records,
)
from penstock.spark_ext.api.failure import failure_of, is_late_worker, root_cause, spark_message
from penstock.spark_ext.border.connection import is_connect, is_local, uses_local_files
from penstock.spark_ext.kafka.decode import decode_kafka
from penstock.spark_ext.sources.rejected import WRONG_CSV

__all__ = [
    "kafka_records",
    "read_sources",
    "read_tables",
    "resolve",
    "section",
    "section_error",
    "spark_options",
]


def read_sources(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame | str]:
    """Return a pipeline's sources by name: DataFrames, or paths for sources that Penstock itself reads.

    Raises
    ------
    InvalidUsageError
        If Spark refuses a source; the error's text names the section.
    """
    inputs: dict[str, tuple[Source, str]] = {SOURCE: (pipeline.source, "source")}
    if pipeline.union is not None:
        for name, other in pipeline.union.inputs.items():
            inputs[name] = other.source, f"union.inputs.{name}.source"
    if pipeline.join is not None:
        inputs[OTHER] = pipeline.join.other.source, "join.with.source"
    return {name: _read(spark, source, place) for name, (source, place) in inputs.items()}


def read_tables(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Return the static tables of a pipeline by their names in its graph.

    Raises
    ------
    InvalidUsageError
        If Spark refuses a table.
    """
    tables = {} if pipeline.lookup is None else {TABLE: _table(spark, pipeline.lookup.table, "lookup.table")}
    if pipeline.database is not None:
        for name, table in pipeline.database.initial.items():
            tables[name] = _table(spark, table, f"database.initial.{name}")
    return tables


def section_error(fact: str, *, hint: str | None = None, **context: Any) -> InvalidUsageError:
    """Return an error whose text begins with the section that it is about."""
    error = InvalidUsageError(fact, hint=hint, **context)
    error.names_section = True
    return error


@contextmanager
def section(name: str) -> Iterator[None]:
    """Add the section's name to an error of Spark or Penstock that has none.

    Raises
    ------
    InvalidUsageError
        If Spark or Penstock refuses the section.
    UnavailableError
        If a Python worker of Spark did not start in time.
    """
    try:
        yield
    except InvalidUsageError as error:
        if error.names_section:
            raise
        if _lacks_kafka(str(error)):
            raise _no_connector(name) from error
        fact = error.fact.removeprefix(f"{name}: ")
        raise section_error(f"{name}: {fact}", hint=error.hint, **error.context) from None
    except (AnalysisException, IllegalArgumentException, ParseException) as error:
        text = str(error)
        if is_late_worker(error):
            raise failure_of(error, name) from error
        if "PYTHON_DATA_SOURCE_ERROR" in text:
            raise section_error(f"{name}: {root_cause(error).removesuffix('.')}") from error
        if _lacks_kafka(text):
            raise _no_connector(name) from error
        raise section_error(f"{name}: {spark_message(error)}") from error


def _lacks_kafka(text: str) -> bool:
    return "kafka" in text and "Failed to find" in text


def _no_connector(name: str) -> InvalidUsageError:
    return section_error(
        f"{name}: Spark's connector for Kafka is not there",
        hint="set query.spark.spark.jars.packages to "
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}, "
        "or pass it to spark-submit as --packages; if there is none of Spark's version yet, 4.2.0 runs on "
        "Spark 4.3, too",
    )


def resolve(spark: SparkSession, location: str) -> str:
    """Make a local path absolute; leave a location with a file system unchanged.

    The workers of a cluster, and a Spark Connect server, do not have the driver's working directory.
    """
    if "://" in location or not (is_connect(spark) or is_local(spark) or uses_local_files(spark)):
        return location
    return str(Path(location).absolute())


def spark_options(**values: Any) -> dict[str, str]:
    """Return the given options as texts, which Spark requires."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }


def _market(spark: SparkSession, source: MarketSource) -> DataFrame:
    options = spark_options(
        rowsPerSecond=source.rows_per_second,
        symbols=source.symbols,
        skew=source.skew,
        seed=source.seed,
        numPartitions=source.partitions,
        startTime=source.start_time,
        maxRowsPerTrigger=source.max_rows_per_trigger,
        rows=source.rows,
        realTime=source.real_time,
    )
    return spark.readStream.format("market").options(**options).load()


def _path(spark: SparkSession, source: FilesSource) -> str:
    path = resolve(spark, source.path)
    if "://" not in path and Path(path).is_file():
        # Spark's stream of files takes only directories and patterns, so make a pattern that matches this one
        # file.
        file = Path(path)
        path = str(file.with_name(f"[{file.name[0]}]{file.name[1:]}"))
    return path


def _files(spark: SparkSession, source: FilesSource, place: str) -> DataFrame:
    path = _path(spark, source)
    reader = spark.readStream.format(source.format).options(**source.options)
    if source.counts_bad_records:
        reader = reader.schema(f"{source.columns}, {BAD_RECORD} STRING")
        rows = reader.option("columnNameOfCorruptRecord", BAD_RECORD).load(path)
        if source.reject_to is not None:
            text = sf.col(BAD_RECORD)
            reason = json_reason(text) if source.format == "json" else sf.lit(WRONG_CSV)
            facts = {"value": text, "file": sf.col("_metadata.file_path"), "reason": reason}
            to = resolve(spark, source.reject_to)
            rows = reject_bad_records(rows, place, source.on_error, to, facts)
        return count_bad_records(rows, place, source.on_error, sf.col("_metadata.file_path"))
    if source.columns is not None:
        reader = reader.schema(source.columns)
    elif source.format != "text":
        # Spark needs the columns of a stream before it starts. Files of these formats hold their columns.
        there = spark.read.format(source.format).options(**source.options).load(path)
        reader = reader.schema(there.schema)
    return reader.load(path)


def kafka_records(spark: SparkSession, source: KafkaSource) -> DataFrame:
    """Return the records of a source in the form in which Spark's connector returns them."""
    reader = spark.readStream.format("kafka").options(**source.options)
    return (reader.option("includeHeaders", "true") if source.has_headers else reader).load()


def _kafka(spark: SparkSession, source: KafkaSource, place: str) -> DataFrame:
    records = kafka_records(spark, source)
    if source.decoded_format is None:
        return records
    return decode_kafka(
        records,
        source.columns,
        format=source.decoded_format,
        **encoding_of(source),
        keep=source.kafka_columns,
        on_error=source.on_error,
        name=place,
        reject_to=None if source.reject_to is None else resolve(spark, source.reject_to),
    )


def _rate(spark: SparkSession, source: RateSource) -> DataFrame:
    options = {"rowsPerSecond": str(source.rows_per_second)} | source.options
    return spark.readStream.format("rate").options(**options).load()


def _read(spark: SparkSession, source: Source, place: str) -> DataFrame | str:
    with section(place):
        if isinstance(source, MarketSource):
            return _market(spark, source)
        if isinstance(source, FilesSource):
            if source.reader == "penstock":
                return _path(spark, source)
            return _files(spark, source, place)
        if isinstance(source, KafkaSource):
            return _kafka(spark, source, place)
        if isinstance(source, PStreamSource):
            return resolve(spark, source.path)
        if isinstance(source, SparkSource):
            reader = spark.readStream.format(source.format).options(**source.options)
            return reader.load(None if source.path is None else resolve(spark, source.path))
        return _rate(spark, source)


def _table(spark: SparkSession, table: TableSection, place: str) -> DataFrame:
    with section(place):
        reader = spark.read.format(table.format).schema(table.columns).options(**table.options)
        return reader.load(resolve(spark, table.path))
