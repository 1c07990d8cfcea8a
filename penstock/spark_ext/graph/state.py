"""The search of a recovery for the state of a graph's queries, before any task starts.

Steps, for each query: 1. what describes its operator is read, 2. the pointers that its last committed
micro-batch left are read from Spark's state, 3. the files that a load of each of them reads are looked for,
by name and length. What is wrong is said as the task that loads the bucket would say it. What is not
committed, garbage, and buckets that were never written are not looked at; nor is a record of the clock, for
only a task knows whether its operator still follows the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.checkpointing.files import Files, open_files
from penstock.checkpointing.graph.directory import GraphDirectory, QueryProgress
from penstock.checkpointing.trace import trace
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_reader.committed import of_operator, specification_of
from penstock.spark_ext.state_reader.spark_state import Held, held_in_files
from penstock.spark_ext.worker.bucket_task import SPECIFICATION_FILE, missing_state
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer
from penstock.state_store.location import find_operators

__all__ = ["FoundState", "HeldBySpark", "StatePlace", "find_state"]

_LOGGER = logging.getLogger(__name__)

_AT_ONCE = 16
"""Directories that are looked at at once: on remote stores a look is mostly waiting."""

HeldBySpark = Callable[[str], Held]
"""Returns the pointers in a query's checkpoint as Spark reads them, which takes tasks of it, and seconds."""


@dataclass(frozen=True, slots=True)
class StatePlace:
    """The place of an operator's state: the state location, and the operator's name there."""

    location: str
    name: str


@dataclass(frozen=True, slots=True)
class FoundState:
    """State that is there.

    Attributes
    ----------
    buckets : int
        How many buckets have any.
    files, size_bytes : int
        What loads of all of them read.
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
    """Return what there is of the state that a query goes on from; see the module.

    Called on the driver, before the query starts.

    Parameters
    ----------
    directory : GraphDirectory
        The graph's checkpoint.
    query : str
        The query's name.
    progress : QueryProgress
        How far it is.
    place : StatePlace
        Where its operator's state is.
    held_by_spark : callable, optional
        Asked where Spark's state is written in a way that only Spark reads. Without it the tasks find what is
        wrong then.

    Raises
    ------
    CorruptDataError
        If a file is missing, cut, or one that is read is damaged.
    InvalidUsageError
        If the state is not that of an operator with buckets.
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
    described = any(facts.name == SPECIFICATION_FILE for facts in files.list())
    buckets = int(specification_of(files)["buckets"]) if described else 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        state = directory.files.child("queries").child(query).child("state")
        held = held_in_files(state, progress.committed, bucket_labels(buckets) if buckets else (), pool.map)
        if held is None:
            held = _asked(directory.query(query), held_by_spark)
        if described:
            found = _of(held, files, buckets)
        elif len(held) == 1 and any(held.values()):
            raise missing_state(files.path_of(SPECIFICATION_FILE))
        else:
            found = {}
        handles = list(pool.map(lambda one: _find(files, *one), found.items()))
    files_read = sum(len(handle.links) for handle in handles)
    return FoundState(len(handles), files_read, sum(handle.size_bytes for handle in handles))


def _check_shared(home: Files) -> None:
    """Refuse damage of what all buckets of an operator share."""
    try:
        operators = find_operators(home)
    except InvalidUsageError:
        return
    for operator in operators:
        for damage in operator.damage:
            raise CorruptDataError(damage.fact, file=damage.file)


def _asked(checkpoint: str, held_by_spark: HeldBySpark | None) -> Held:
    if held_by_spark is not None:
        try:
            return held_by_spark(checkpoint)
        except (PySparkException, Py4JError) as error:
            # Its own query will say so, or manage.
            _LOGGER.warning("state is left to the tasks [checkpoint=%s error=%s]", checkpoint, error)
    return {}


def _of(held: Held, files: Files, buckets: int) -> dict[int, Pointer]:
    """Return the pointers that are of our operator, by bucket; none where that is not certain."""
    found = of_operator(held, files, buckets)
    if found is not None:
        return found
    labels = {label: bucket for bucket, label in enumerate(bucket_labels(buckets))}
    if len(held) == 1:
        # A query has one operator of ours, so these are its, though all of their files are gone.
        (pointers,) = held.values()
        return {labels[label]: pointer for label, pointer in pointers.items() if label in labels}
    return {}


def _find(files: Files, bucket: int, pointer: Pointer) -> Handle:
    store = BucketStore(files.child(f"{bucket:05d}"))
    trace("found", location=store.files.location, file=pointer.file_name)
    return store.find(pointer)
