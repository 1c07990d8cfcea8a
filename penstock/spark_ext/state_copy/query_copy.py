"""The steps that all copies of a query share: a new checkpoint and new state under a new query id.

On the driver, without Spark:

1. write the plan of the copy, ``<new checkpoint>.fork/penstock_fork.json``: the micro-batch and the new id;
2. write Penstock's state to ``<state>/<new id>/``, which the caller does;
3. copy Spark's files up to the micro-batch to ``<new checkpoint>.fork/``, with the new id;
4. sync them, and give the directory its final name.

Invariants: the old files are only read. Files appear whole or not at all. Before step 4 there is no new
checkpoint; a second call with the same arguments continues from the plan of step 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import _durable
from penstock._clock import new_id
from penstock.checkpointing.files import Files, LocalFiles, open_files
from penstock.checkpointing.spark_checkpoint import list_numbers, local_path, make_durable
from penstock.errors import ConflictError, CorruptDataError, InvalidUsageError
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_reader.committed import pointers_of, specification_of
from penstock.spark_ext.state_reader.spark_state import Held, read_pointer_files
from penstock.state_store.bucket_store import Pointer
from penstock.state_store.location import find_operators

__all__ = [
    "CopiedBucket",
    "CopiedQuery",
    "Progress",
    "QueryCopy",
    "explain_missing_file",
    "plan_copy",
    "publish_once",
]

_PLAN = "penstock_fork.json"
_OFFSETS, _COMMITS, _SOURCES, _STATE, _METADATA = "offsets", "commits", "sources", "state", "metadata"
_NUMBERED = re.compile(r"\.?(\d+)(\.compact)?(\.crc)?")
_VERSIONED = re.compile(r"\.?(\d+)\.(delta|snapshot)(\.crc)?")
_RELEASED = "the query deletes old versions: choose a newer micro-batch, or set retain_versions"

Progress = Callable[[int, int], None]
"""Called with the numbers of finished and of all parts: one for each bucket, and one for Spark's files."""


@dataclass(frozen=True, slots=True)
class CopiedBucket:
    """A bucket that has state at the micro-batch.

    Attributes
    ----------
    operator, bucket : str
        The operator's name, and the name of the bucket's directory.
    files : Files
        The bucket's directory.
    pointer : Pointer
        The pointer to the committed version.
    """

    operator: str
    bucket: str
    files: Files
    pointer: Pointer


@dataclass(frozen=True, slots=True)
class CopiedQuery:
    """A finished copy of a query.

    Attributes
    ----------
    checkpoint : str
        The new checkpoint.
    query : str
        The id of the new query.
    batch : int
        The micro-batch after which the new query continues.
    """

    checkpoint: str
    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class QueryCopy:
    """A copy of a query that is planned or under way.

    Attributes
    ----------
    old, new, unfinished : pathlib.Path
        The old and the new checkpoint, and the directory that becomes the new checkpoint.
    query : str
        The id of the old query.
    plan : mapping
        The content of the plan's file.
    continues : bool
        Whether an earlier call has written the plan.
    operators : mapping of str to Files
        The directories of the old query's operators, by name.
    target : Files
        The directory of the new query's state.
    held : mapping
        The old pointers of each of Spark's operators that has pointers, by the operator's number.
    buckets : list of CopiedBucket
        The buckets that have state.
    """

    old: Path
    new: Path
    unfinished: Path
    query: str
    plan: Mapping[str, Any]
    continues: bool
    operators: Mapping[str, Files]
    target: Files
    held: Held
    buckets: list[CopiedBucket]

    @property
    def own(self) -> str:
        """The id of the new query."""
        return str(self.plan["query"])

    @property
    def batch(self) -> int:
        """The micro-batch after which the copy continues."""
        return int(self.plan["batch"])

    @property
    def has_later_rows(self) -> bool:
        """Return whether the sink of the old query may already have rows of later micro-batches."""
        return max(list_numbers(self.old / _OFFSETS), default=self.batch) > self.batch

    def begin(self) -> None:
        """Write the plan, unless an earlier call has written it.

        Raises
        ------
        ConflictError
            If another call has written a plan first.
        """
        if not self.continues:
            LocalFiles(self.unfinished).publish(_PLAN, json.dumps(dict(self.plan)).encode())

    def spark_state(self, number: int) -> tuple[Files, Files]:
        """Return the directories of Spark's state of an operator in the old and in the new checkpoint."""
        old, new = (LocalFiles(place / _STATE) for place in (self.old, self.unfinished))
        return old.child(str(number)), new.child(str(number))

    def copy_spark(self, *, except_pointers_of: int | None = None) -> None:
        """Copy Spark's files up to the micro-batch.

        Logs of sources are copied whole. The new query treats entries after the micro-batch as new.

        Parameters
        ----------
        except_pointers_of : int, optional
            The number of a Spark operator whose pointers are not copied.
        """
        own_state = self.old / _STATE / str(except_pointers_of)
        for name, keeps in (
            (_SOURCES, None),
            (_STATE, lambda file: _is_up_to(_VERSIONED, file, self.batch + 1)),
            (_COMMITS, lambda file: _is_up_to(_NUMBERED, file, self.batch)),
            (_OFFSETS, lambda file: _is_up_to(_NUMBERED, file, self.batch)),
        ):
            for directory, _, files in os.walk(self.old / name):
                target = self.unfinished / Path(directory).relative_to(self.old)
                _durable.make_directory(target)
                skips = own_state in Path(directory).parents
                for file in files:
                    path = target / file
                    if file.endswith(".tmp") or path.exists() or (keeps is not None and not keeps(file)):
                        continue
                    if skips and _VERSIONED.fullmatch(file):
                        continue
                    _copy_file(Path(directory) / file, path)

    def finish(self) -> None:
        """Make the copy durable, and give the checkpoint its name."""
        if not (self.unfinished / _METADATA).exists():
            LocalFiles(self.unfinished).publish(_METADATA, json.dumps({"id": self.own}).encode())
        make_durable(str(self.unfinished))
        _durable.replace(self.new, self.unfinished)
        _durable.sync_directory(self.new.parent)


def plan_copy(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    at: int | None,
    *,
    change: Mapping[str, Any] | None = None,
) -> QueryCopy:
    """Plan a copy of a query, or find an unfinished copy to continue; write nothing.

    Parameters
    ----------
    checkpoint, path, to, at
        See `penstock.spark_ext.state_copy.fork.fork_state`.
    change : mapping, optional
        The changes that the copy makes, as JSON values.

    Raises
    ------
    InvalidUsageError, CorruptDataError, UnavailableError
        As for `fork_state`.
    """
    old, new = _local(checkpoint), _local(to)
    if new.exists():
        raise InvalidUsageError("the new checkpoint exists", to=new, hint="choose a new directory")
    if new.is_relative_to(old):
        raise InvalidUsageError(
            "the new checkpoint is inside the old checkpoint", to=new, hint="choose a directory beside it"
        )
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
    unfinished = new.with_name(f"{new.name}.fork")
    arguments = {"checkpoint": str(old), "state": states.location, "change": change and dict(change)}
    plan = _read_plan(unfinished, arguments, at)
    batch = plan["batch"] if plan else _newest_batch(old) if at is None else at
    _check_committed(old, batch)
    held = _pointers_at(old, batch, operators)
    buckets = _buckets(held, operators, batch)
    continues = plan is not None
    plan = plan or arguments | {"batch": batch, "query": str(uuid.UUID(new_id()))}
    target = states.child(str(plan["query"]))
    return QueryCopy(old, new, unfinished, query, plan, continues, operators, target, held, buckets)


def publish_once(files: Files, name: str, content: Any) -> None:
    """Write a file, unless an earlier call has written it."""
    try:
        files.publish(name, content)
    except ConflictError:
        return


def _local(location: str | os.PathLike[str]) -> Path:
    path = local_path(os.fspath(location))
    if path is None:
        raise InvalidUsageError(
            "only checkpoints on a local disk can be copied", checkpoint=os.fspath(location)
        )
    return path.absolute()


def _query_in(checkpoint: Path) -> str:
    home = checkpoint.resolve().parent
    in_graph = home.name == "queries" and any(home.parent.glob("graph-*.json"))
    if in_graph or (checkpoint / "queries").is_dir():
        part = "a query of " if in_graph else ""
        raise InvalidUsageError(
            f"this is the checkpoint of {part}a graph or pipeline, which cannot be copied",
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


def _read_plan(unfinished: Path, arguments: Mapping[str, Any], at: int | None) -> dict[str, Any] | None:
    """Return the plan of an unfinished copy; None if there is none."""
    try:
        plan: dict[str, Any] = json.loads(bytes(LocalFiles(unfinished).read(_PLAN)))
    except FileNotFoundError:
        return None
    # Plans of version 0.1.0 have no field `change`.
    if any(plan.get(name) != value for name, value in arguments.items()) or at not in {None, plan["batch"]}:
        raise InvalidUsageError(
            "an unfinished copy to this place has other arguments",
            directory=unfinished,
            of=plan["checkpoint"],
            at=plan["batch"],
            change=plan.get("change"),
            hint="repeat its arguments, or delete the directory",
        )
    return plan


def _newest_batch(checkpoint: Path) -> int:
    batch = max(list_numbers(checkpoint / _COMMITS), default=None)
    if batch is None:
        raise InvalidUsageError("the query has committed no micro-batch", checkpoint=checkpoint)
    return batch


def _check_committed(checkpoint: Path, batch: int) -> None:
    batches = list_numbers(checkpoint / _COMMITS) & list_numbers(checkpoint / _OFFSETS)
    if batch not in batches:
        raise InvalidUsageError(
            "the checkpoint has no such committed micro-batch",
            at=batch,
            oldest=min(batches, default=None),
            newest=max(batches, default=None),
        )


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
    return held


def _buckets(held: Held, operators: Mapping[str, Files], batch: int) -> list[CopiedBucket]:
    """Return the buckets that have state.

    Raises
    ------
    CorruptDataError
        If there are pointers that belong to no operator.
    """
    buckets = {}
    for name, files in operators.items():
        pointers = pointers_of(held, files, int(specification_of(files)["buckets"]))
        if pointers:
            buckets[name] = pointers
    if len(buckets) != sum(map(bool, held.values())):
        raise CorruptDataError("state of this micro-batch is gone", at=batch, hint=_RELEASED)
    return [
        CopiedBucket(name, f"{bucket:05d}", operators[name].child(f"{bucket:05d}"), pointer)
        for name, pointers in buckets.items()
        for bucket, pointer in sorted(pointers.items())
    ]


@contextlib.contextmanager
def explain_missing_file(bucket: CopiedBucket) -> Iterator[None]:
    """If a file cannot be read, explain that the running query may have deleted the version.

    Raises
    ------
    CorruptDataError
        Instead of the error in the block.
    """
    try:
        yield
    except (CorruptDataError, FileNotFoundError) as error:
        name = bucket.pointer.file_name
        if any(facts.name == name for facts in bucket.files.list()):
            raise
        raise CorruptDataError(
            "state of this micro-batch is gone", file=bucket.files.path_of(name), hint=_RELEASED
        ) from error


def _copy_file(old: Path, new: Path) -> None:
    """Copy a file of Spark, whole or not at all."""
    hidden = new.with_name(f".{new.name}.{new_id()}.tmp")
    try:
        content = _durable.read(old)
    except FileNotFoundError:
        # Spark deletes its oldest files while the query runs.
        return
    hidden.write_bytes(content)
    _durable.replace(new, hidden)


def _is_up_to(pattern: re.Pattern[str], name: str, last: int) -> bool:
    match = pattern.fullmatch(name)
    return match is None or int(match[1]) <= last
