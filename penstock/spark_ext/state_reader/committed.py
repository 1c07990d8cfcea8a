"""The pointers in a checkpoint: the version of each bucket that the newest micro-batch committed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from penstock.checkpointing.fields import Fields
from penstock.checkpointing.files import Files
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_reader.spark_state import POINTER_FIELDS, SPARK_OPERATOR, Held
from penstock.spark_ext.worker.bucket_task import SPECIFICATION_FILE
from penstock.state_store.bucket_store import FileId, Pointer, Version
from penstock.state_store.descriptions import read_description

__all__ = ["committed_pointers", "pointers_of", "query_of", "read_pointers", "specification_of"]

_NO_PATH = "PATH_NOT_FOUND"
"""Spark's name for a path without files."""

RESULTS_CHECKPOINT = "queries/results"
"""The checkpoint of the query that makes a graph's results, below the graph's directory."""

_NOTHING_COMMITTED = "STDS_COMMITTED_BATCH_UNAVAILABLE"
"""Spark's name for a checkpoint without a committed micro-batch."""


def specification_of(files: Files) -> Mapping[str, Any]:
    """Return the specification of the operator in the directory `files`.

    Raises
    ------
    CorruptDataError
        If the specification is missing or damaged.
    InvalidUsageError
        If the operator has no buckets.
    UnavailableError
        If the file system refuses.
    """
    path = files.path_of(SPECIFICATION_FILE)
    meta = read_description(files)
    if meta is None:
        raise CorruptDataError(
            "the description of the operator is missing", file=path, hint="restore the file"
        )
    if "buckets" not in meta:
        raise InvalidUsageError("this is not the state of an operator", file=path)
    Fields(meta, path).number("buckets", least=1)
    return meta


def query_of(spark: SparkSession, checkpoint: str) -> tuple[str, str]:
    """Return the id of the query to which a checkpoint belongs, and the checkpoint.

    For the directory of a graph or a pipeline, this is the query that makes the results.

    Raises
    ------
    InvalidUsageError
        If `checkpoint` is not a checkpoint.
    """
    for path in (checkpoint, f"{checkpoint}/{RESULTS_CHECKPOINT}"):
        try:
            lines = spark.read.text(f"{path}/metadata").collect()
            return str(json.loads(lines[0][0])["id"]), path
        except PySparkException as error:
            if error.getCondition() != _NO_PATH:
                raise _no_checkpoint(checkpoint) from error
        except (ValueError, LookupError) as error:
            raise _no_checkpoint(checkpoint) from error
    raise _no_checkpoint(checkpoint)


def _no_checkpoint(checkpoint: str) -> InvalidUsageError:
    return InvalidUsageError(
        "this is not the checkpoint of a streaming query",
        checkpoint=checkpoint,
        hint="pass the query's checkpointLocation, or the directory of a graph or pipeline",
    )


def committed_pointers(spark: SparkSession, checkpoint: str, files: Files) -> dict[int, Pointer]:
    """Return the pointers of the newest committed micro-batch by bucket, without empty buckets.

    This function runs on the driver and reads the pointers during the call. The query may be running. Spark
    numbers its stateful operators and does not store Penstock's names. So this function finds a pointer's
    operator by the directory that holds the pointer's file.

    Parameters
    ----------
    spark : SparkSession
        The session.
    checkpoint : str
        The checkpoint of the query, in the form given to Spark.
    files : Files
        The operator's directory.

    Raises
    ------
    CorruptDataError
        If the checkpoint has pointers but none of them names a file of this operator, or the operator's
        description is damaged.
    InvalidUsageError
        If the operator has no buckets.
    UnavailableError
        If the file system refuses.
    """
    held = read_pointers(spark, checkpoint)
    pointers = pointers_of(held, files, int(specification_of(files)["buckets"]))
    if pointers is not None:
        return pointers
    if not any(held.values()):
        return {}
    raise CorruptDataError(
        "the checkpoint points to no file of this operator",
        checkpoint=checkpoint,
        file=files.location,
        hint="give the state location that the query has; if the query runs, read again",
    )


def read_pointers(spark: SparkSession, checkpoint: str) -> Held:
    """Return the pointers in Spark's state at the newest committed micro-batch, as Spark reads them.

    Raises
    ------
    pyspark.errors.PySparkException
        If Spark cannot read its state.
    """
    metadata = spark.read.format("state-metadata").load(checkpoint)
    rows = metadata.where(sf.col("operatorName") == SPARK_OPERATOR).select("operatorId").distinct().collect()
    found = {row[0]: _pointers_of(spark, checkpoint, row[0]) for row in sorted(rows)}
    return {number: pointers for number, pointers in found.items() if pointers is not None}


def pointers_of(held: Held, files: Files, buckets: int) -> dict[int, Pointer] | None:
    """Return the pointers of the operator in the directory `files` by bucket; None if it has no pointers.

    A set of pointers belongs to the operator if at least one of them points to a file in its directory.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    labels = {label: bucket for bucket, label in enumerate(bucket_labels(buckets))}
    for pointers in held.values():
        by_bucket = {labels[label]: pointer for label, pointer in pointers.items() if label in labels}
        if len(by_bucket) == len(pointers) and any(
            _has(files.child(f"{bucket:05d}"), pointer) for bucket, pointer in by_bucket.items()
        ):
            return by_bucket
    return None


def _pointers_of(spark: SparkSession, checkpoint: str, number: int) -> dict[int, Pointer] | None:
    """Return the pointers of one of Spark's operators, by label; None if its state has no pointers."""
    try:
        states = spark.read.format("statestore").option("operatorId", number).load(checkpoint)
    except PySparkException as error:
        if error.getCondition() != _NOTHING_COMMITTED:
            raise
        return {}
    value = states.schema["value"].dataType
    group = (
        value["groupState"].dataType
        if isinstance(value, StructType) and "groupState" in value.names
        else None
    )
    if not isinstance(group, StructType) or set(group.names) != set(POINTER_FIELDS):
        return None
    held = states.where("value.groupState is not null").select(
        "key.bucket", "value.groupState.version", "value.groupState.file_id"
    )
    return {row[0]: Pointer(Version(row[1]), FileId(row[2])) for row in held.collect()}


def _has(files: Files, pointer: Pointer) -> bool:
    return any(facts.name == pointer.file_name for facts in files.list())
