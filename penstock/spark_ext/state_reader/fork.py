"""`fork_state`: copy a query's state and checkpoint at a committed micro-batch, under a new query id.

The steps, on the driver, without Spark:

1. write the plan of the fork, ``<new checkpoint>.fork/penstock_fork.json``: the micro-batch and the new id;
2. copy the files of Penstock's state that the micro-batch's pointers reach, to ``<state>/<new id>/``;
3. copy Spark's files up to the micro-batch to ``<new checkpoint>.fork/``, with the new id;
4. sync them, and give the directory its name.

Invariants: the old files are only read. Files appear whole or not at all. Before step 4 there is no new
checkpoint, and a second call with the same arguments continues by the plan of step 1.
"""

from __future__ import annotations

import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock import _durable
from penstock._clock import new_id
from penstock.checkpointing.files import Files, LocalFiles, open_files
from penstock.checkpointing.spark_checkpoint import local_path, make_durable
from penstock.errors import ConflictError, CorruptDataError, InvalidUsageError
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_reader.committed import pointers_of, specification_of
from penstock.spark_ext.state_reader.spark_state import Held, read_pointer_files
from penstock.state_store.bucket_store import BucketStore, Pointer
from penstock.state_store.location import SPECIFICATION_FILE, find_operators

__all__ = ["Fork", "fork_state"]

_LOGGER = logging.getLogger(__name__)

_PLAN = "penstock_fork.json"
_OFFSETS, _COMMITS, _SOURCES, _STATE, _METADATA = "offsets", "commits", "sources", "state", "metadata"
_NUMBERED = re.compile(r"\.?(\d+)(\.compact)?(\.crc)?")
_VERSIONED = re.compile(r"\.?(\d+)\.(delta|snapshot)(\.crc)?")
_RELEASED = "the query deletes old versions: choose a newer micro-batch, or set retain_versions"

Progress = Callable[[int, int], None]
"""Called with the numbers of finished parts and of all parts: the buckets, and Spark's files as one."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A finished fork.

    Attributes
    ----------
    checkpoint : str
        The new checkpoint.
    query : str
        The id of its query.
    batch : int
        The micro-batch after which it continues.
    buckets : int
        The number of copied buckets of all operators.
    """

    checkpoint: str
    query: str
    batch: int
    buckets: int


def fork_state(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    at: int | None = None,
    progress: Progress | None = None,
) -> Fork:
    """Copy a query at a committed micro-batch, so that a second query continues from there.

    Called on the driver; starts no JVM. The copy is a new checkpoint and a new directory in the state
    location. Nothing of the old query changes, and it may run meanwhile. If the call is interrupted at any
    point, call it again with the same arguments: it continues.

    Parameters
    ----------
    checkpoint : str or path
        The query's checkpoint, on a local disk. Not that of a graph or of a pipeline.
    path : str or path
        The query's state location.
    to : str or path
        The new checkpoint, on a local disk; nothing may be there yet.
    at : int, optional
        The micro-batch; by default the newest committed one. The query must still have its state: with
        `retain_versions` n at least that of the newest n micro-batches.
    progress : callable, optional
        Called after each copied bucket with the numbers of finished parts and of all parts.

    Returns
    -------
    Fork
        The new query's id, and the micro-batch.

    Raises
    ------
    InvalidUsageError
        If this is not the checkpoint of a query with state at this location, the micro-batch was not
        committed, the new checkpoint exists, or an unfinished fork to it has other arguments.
    CorruptDataError
        If a file of the micro-batch is damaged or gone; a running query may have deleted it.
    UnavailableError
        If the file system refuses.

    Examples
    --------
    >>> penstock.fork_state("/ck/loads", "/var/lib/penstock", "/ck/trial")  # doctest: +SKIP
    """
    old, new = _local(checkpoint), _local(to)
    if new.exists():
        raise InvalidUsageError("the new checkpoint exists", to=new, hint="choose a new directory")
    query = _query_in(old)
    states = open_files(path)
    operators = {
        one.name: one.files for one in find_operators(states) if one.query == query and one.files is not None
    }
    if not operators or not states.child(query).list():
        raise InvalidUsageError(
            "the state location has no state of this query",
            location=states.location,
            query=query,
            hint="give the query's state_location itself",
        )
    made = new.with_name(f"{new.name}.fork")
    batch, own = _plan(made, old, states, at)
    _check_committed(old, batch)
    held = _pointers_at(old, batch, operators)
    buckets = _buckets(held, operators, batch)
    parts = len(buckets) + 1
    for name, files in operators.items():
        _copy(files, states.child(own).child(name), SPECIFICATION_FILE)
    for done, (name, bucket, files, pointer) in enumerate(buckets, 1):
        _copy_bucket(files, states.child(own).child(name).child(bucket), pointer)
        if progress is not None:
            progress(done, parts)
    _copy_spark(old, made, batch)
    metadata = made / _METADATA
    if not metadata.exists():
        LocalFiles(made).publish(_METADATA, json.dumps({"id": own}).encode())
    make_durable(str(made))
    _durable.replace(new, made)
    _durable.sync_directory(new.parent)
    if progress is not None:
        progress(parts, parts)
    _LOGGER.info("forked a query [query=%s batch=%d new_query=%s checkpoint=%s]", query, batch, own, new)
    return Fork(str(new), own, batch, len(buckets))


def _local(location: str | os.PathLike[str]) -> Path:
    path = local_path(os.fspath(location))
    if path is None:
        raise InvalidUsageError(
            "only checkpoints on a local disk can be forked", checkpoint=os.fspath(location)
        )
    return path.absolute()


def _query_in(checkpoint: Path) -> str:
    """Return the id of a checkpoint's query."""
    if (checkpoint / "queries").is_dir():
        raise InvalidUsageError(
            "this is the checkpoint of a graph, which cannot be forked",
            checkpoint=checkpoint,
            hint="a graph's p-streams belong to its checkpoint; give the checkpoint of a single query",
        )
    try:
        return str(json.loads((checkpoint / _METADATA).read_text())["id"])
    except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError) as error:
        raise InvalidUsageError(
            "this is not the checkpoint of a streaming query",
            checkpoint=checkpoint,
            hint="pass the query's checkpointLocation",
        ) from error


def _plan(made: Path, old: Path, states: Files, at: int | None) -> tuple[int, str]:
    """Return the micro-batch and the new query's id, from an unfinished fork if there is one."""
    files = LocalFiles(made)
    source = {"checkpoint": str(old), "state": states.location}
    try:
        plan = json.loads(bytes(files.read(_PLAN)))
    except FileNotFoundError:
        batch = max(_numbers(old / _COMMITS), default=None) if at is None else at
        if batch is None:
            raise InvalidUsageError("the query has committed no micro-batch", checkpoint=old) from None
        _check_committed(old, batch)
        plan = source | {"batch": batch, "query": str(uuid.UUID(new_id()))}
        files.publish(_PLAN, json.dumps(plan).encode())
    if any(plan[name] != value for name, value in source.items()) or at not in {None, plan["batch"]}:
        raise InvalidUsageError(
            "an unfinished fork to this place has other arguments",
            directory=made,
            of=plan["checkpoint"],
            at=plan["batch"],
            hint="repeat its arguments, or delete the directory",
        )
    return int(plan["batch"]), str(plan["query"])


def _check_committed(checkpoint: Path, batch: int) -> None:
    known = _numbers(checkpoint / _COMMITS) & _numbers(checkpoint / _OFFSETS)
    if batch not in known:
        raise InvalidUsageError(
            "the checkpoint has no such committed micro-batch",
            at=batch,
            oldest=min(known, default=None),
            newest=max(known, default=None),
        )


def _numbers(directory: Path) -> set[int]:
    return {int(path.name) for path in directory.glob("[0-9]*") if path.name.isdecimal()}


def _pointers_at(checkpoint: Path, batch: int, operators: Mapping[str, Files]) -> Held:
    labels = {
        label
        for files in operators.values()
        for label in bucket_labels(int(specification_of(files)["buckets"]))
    }
    held = read_pointer_files(LocalFiles(checkpoint / _STATE), batch, sorted(labels))
    if held is None:
        raise InvalidUsageError(
            "Spark's state of this micro-batch cannot be read",
            checkpoint=checkpoint,
            at=batch,
            hint="it may be too old, or not of Spark's default state store and codec; see penstock repair",
        )
    return {number: pointers for number, pointers in held.items() if pointers}


def _buckets(held: Held, operators: Mapping[str, Files], batch: int) -> list[tuple[str, str, Files, Pointer]]:
    """Return operator, name, directory and pointer of each bucket that has state.

    Raises
    ------
    CorruptDataError
        If pointers belong to no operator.
    """
    found = {}
    for name, files in operators.items():
        pointers = pointers_of(held, files, int(specification_of(files)["buckets"]))
        if pointers:
            found[name] = pointers
    if len(found) != len(held):
        raise CorruptDataError("state of this micro-batch is gone", at=batch, hint=_RELEASED)
    return [
        (name, f"{bucket:05d}", operators[name].child(f"{bucket:05d}"), pointer)
        for name, pointers in found.items()
        for bucket, pointer in sorted(pointers.items())
    ]


def _copy_bucket(files: Files, to: Files, pointer: Pointer) -> None:
    """Copy the files in the chain of a pointer, the newest last."""
    present = {facts.name for facts in to.list()}
    if pointer.file_name in present:
        return
    try:
        handle, _ = BucketStore(files).look(pointer)
        for link in handle.links:
            if link.pointer.file_name not in present:
                _copy(files, to, link.pointer.file_name)
    except (CorruptDataError, FileNotFoundError) as error:
        if any(facts.name == pointer.file_name for facts in files.list()):
            raise
        raise CorruptDataError(
            "state of this micro-batch is gone", file=files.path_of(pointer.file_name), hint=_RELEASED
        ) from error


def _copy(files: Files, to: Files, name: str) -> None:
    """Copy a file of state, unless it is there."""
    try:
        to.publish(name, files.read(name))
    except ConflictError:
        return


def _copy_spark(old: Path, made: Path, batch: int) -> None:
    """Copy Spark's files up to a micro-batch.

    Logs of sources are copied whole: what they list after the micro-batch is new to the fork.
    """
    for name, keeps in (
        (_SOURCES, None),
        (_STATE, lambda file: _up_to(_VERSIONED, file, batch + 1)),
        (_COMMITS, lambda file: _up_to(_NUMBERED, file, batch)),
        (_OFFSETS, lambda file: _up_to(_NUMBERED, file, batch)),
    ):
        for directory, _, files in os.walk(old / name):
            target = made / Path(directory).relative_to(old)
            _durable.make_directory(target)
            for file in files:
                path = target / file
                if file.endswith(".tmp") or path.exists() or (keeps is not None and not keeps(file)):
                    continue
                hidden = target / f".{file}.{new_id()}.tmp"
                try:
                    content = _durable.read(Path(directory) / file)
                except FileNotFoundError:
                    # Spark deletes its oldest files while the query runs.
                    continue
                hidden.write_bytes(content)
                _durable.replace(path, hidden)


def _up_to(pattern: re.Pattern[str], name: str, last: int) -> bool:
    found = pattern.fullmatch(name)
    return found is None or int(found[1]) <= last
