"""The committed state in a state location, according to a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import InvalidUsageError
from penstock.jobs.session import open_session
from penstock.spark_ext.state_reader.committed import committed_pointers, query_of
from penstock.state_store.bucket_store import Pointer
from penstock.state_store.location import Operator

__all__ = ["read_committed"]


def read_committed(
    checkpoint: str, operators: Sequence[Operator]
) -> tuple[list[Operator], dict[str, Pointer]]:
    """Return the `operators` of the checkpoint's query, and their buckets' pointers.

    The driver calls this function once. It uses the active Spark session, or starts a session and stops it.

    Parameters
    ----------
    checkpoint : str
        The checkpoint of the query, in the form given to Spark.
    operators : sequence of Operator
        The operators in the state location.

    Returns
    -------
    operators : list of Operator
        The operators that belong to the checkpoint's query, in the given order; at least one.
    pointers : dict of str to Pointer
        The pointers by the buckets' locations. A bucket without a pointer has no state in the newest
        committed micro-batch.

    Raises
    ------
    InvalidUsageError
        If this is not a checkpoint, none of the operators belongs to its query, or the state location is the
        directory of one bucket, not of an operator.
    CorruptDataError
        If the checkpoint has pointers but none of them names a file of an operator, or the operator's
        description is damaged.
    UnavailableError
        If the file system refuses, or Spark does not start.
    """
    spark, is_own = open_session("penstock", {})
    try:
        query, checkpoint = query_of(spark, checkpoint)
        own = [operator for operator in operators if operator.query == query]
        if not own:
            raise InvalidUsageError(
                "the checkpoint belongs to another query",
                checkpoint_of=query,
                found=", ".join(sorted({operator.query_label for operator in operators})),
            )
        pointers = {}
        for operator in own:
            if operator.files is None:
                raise InvalidUsageError(
                    "the path is the directory of one bucket",
                    path=operator.buckets[0].location,
                    hint="give the operator's directory",
                )
            for bucket, pointer in committed_pointers(spark, checkpoint, operator.files).items():
                pointers[operator.files.child(f"{bucket:05d}").location] = pointer
    finally:
        if is_own:
            spark.stop()
    return own, pointers
