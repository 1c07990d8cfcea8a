"""Find the state of a graph's queries during recovery, before any task starts.

Steps, for each query: 1. read the description of its operator, 2. read the pointers of its last committed
micro-batch from Spark's state, 3. check by name and length the files that a load of each pointer reads.
Errors are the same as in a task that loads the bucket. Uncommitted files, garbage, and buckets that were
never written are not checked. Clock records are not checked either, because only a task knows whether its
operator still uses them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.errors import PySparkException

from penstock.checkpointing.files import Files, open_files
from penstock.checkpointing.graph.directory import GraphDirectory, QueryProgress
from penstock.checkpointing.trace import trace
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.connection import Py4JError
from penstock.spark_ext.state_reader.committed import pointers_of, specification_of
from penstock.spark_ext.state_reader.spark_state import Held, read_pointer_files
from penstock.spark_ext.worker.bucket_task import SPECIFICATION_FILE, missing_state_error
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer
from penstock.state_store.location import find_operators

__all__ = ["FoundState", "HeldBySpark", "StatePlace", "find_state"]

_LOGGER = logging.getLogger(__name__)

_PARALLEL_READS = 16
"""The number of directories to check in parallel: on remote stores most of the time is spent waiting."""

HeldBySpark = Callable[[str], Held]
"""Reads the pointers in a query's checkpoint with Spark tasks, which takes seconds."""


@dataclass(frozen=True, slots=True)
class StatePlace:
    """The location of an operator's state: the state location, and the operator's name in it."""

    location: str
    name: str


@dataclass(frozen=True, slots=True)
class FoundState:
    """Counts of the state that was found.

    Attributes
    ----------
    buckets : int
        The number of buckets with state.
    files, size_bytes : int
        The files and bytes that loads of all buckets read.
    """

    buckets: int = 0
    files: int = 0
    size_bytes: int = 0


def find_state(
    directory: GraphDirectory,
    query: str,
    progress: QueryProgress,
    place: StatePlace,
    held_by_spark: HeldBySpark | None = None,
) -> FoundState:
    """Find the state from which a query continues; see the module.

    The driver calls this function before the query starts.

    Parameters
    ----------
    directory : GraphDirectory
        The graph's checkpoint.
    query : str
        The query's name.
    progress : QueryProgress
        The query's progress.
    place : StatePlace
        The location of the operator's state.
    held_by_spark : callable, optional
        Called to read Spark's own state, if only Spark can read its format. If this is None, such state is
        not checked here; tasks will find any damage.

    Raises
    ------
    CorruptDataError
        If a file is missing or cut, or a file that is read is damaged.
    InvalidUsageError
        If the state does not belong to an operator with buckets.
    UnavailableError
        If the file system refuses.
    """
    if progress.id is None:
        return FoundState()
    home = open_files(place.location).child(progress.id)
    _check_shared(home)
    if progress.committed < 0:
        return FoundState()
    files = home.child(place.name)
    is_described = any(facts.name == SPECIFICATION_FILE for facts in files.list())
    buckets = int(specification_of(files)["buckets"]) if is_described else 0
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        state = directory.files.child("queries").child(query).child("state")
        stored = read_pointer_files(
            state, progress.committed, bucket_labels(buckets) if buckets else (), pool.map
        )
        if stored is None:
            stored = _ask(directory.query(query), held_by_spark)
        if is_described:
            pointers = _select_pointers(stored, files, buckets)
        elif len(stored) == 1 and any(stored.values()):
            raise missing_state_error(files.path_of(SPECIFICATION_FILE))
        else:
            pointers = {}
        handles = list(pool.map(lambda entry: _find(files, *entry), pointers.items()))
    files_read = sum(len(handle.links) for handle in handles)
    return FoundState(len(handles), files_read, sum(handle.size_bytes for handle in handles))


def _check_shared(home: Files) -> None:
    """Raise an error if a file that all buckets of an operator share is damaged."""
    try:
        operators = find_operators(home)
    except InvalidUsageError:
        return
    for operator in operators:
        for damage in operator.damage:
            raise CorruptDataError(damage.fact, file=damage.file)


def _ask(checkpoint: str, held_by_spark: HeldBySpark | None) -> Held:
    if held_by_spark is not None:
        try:
            return held_by_spark(checkpoint)
        except (PySparkException, Py4JError) as error:
            # The operator's own query will report this, or recover.
            _LOGGER.warning("state is left to the tasks [checkpoint=%s error=%s]", checkpoint, error)
    return {}


def _select_pointers(stored: Held, files: Files, buckets: int) -> dict[int, Pointer]:
    """Return the pointers of the operator by bucket. If any pointer is uncertain, return no pointers."""
    pointers_by_bucket = pointers_of(stored, files, buckets)
    if pointers_by_bucket is not None:
        return pointers_by_bucket
    labels = {label: bucket for bucket, label in enumerate(bucket_labels(buckets))}
    if len(stored) == 1:
        # A query has one Penstock operator. So these pointers belong to the operator, even if all their files
        # are gone.
        (pointers,) = stored.values()
        return {labels[label]: pointer for label, pointer in pointers.items() if label in labels}
    return {}


def _find(files: Files, bucket: int, pointer: Pointer) -> Handle:
    store = BucketStore(files.child(f"{bucket:05d}"))
    trace("found", location=store.files.location, file=pointer.file_name)
    return store.find(pointer)
