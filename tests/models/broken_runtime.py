"""Ways to break the runtime. The replay of a trace must detect each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.checkpointing.files import open_files
from penstock.checkpointing.graph.directory import GraphDirectory, QueryProgress
from penstock.checkpointing.p_stream.log import CommitLog
from penstock.checkpointing.p_stream.log_record import WriterState
from penstock.checkpointing.p_stream.segments import SegmentWriter
from penstock.checkpointing.p_stream.stream import PStream
from penstock.spark_ext.sources.p_stream_source import _StreamReader
from penstock.spark_ext.worker.bucket_task import BucketTask
from penstock.state_store.bucket_store import BucketStore
from penstock.state_store.lineage import Handle, number_of, pointer_of

Patch = pytest.MonkeyPatch


def releases_before_the_checkpoint(patch: Patch) -> None:
    """Release the rows of a micro-batch when it is planned."""
    partitions = _StreamReader.partitions

    def eager(self: Any, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        planned = partitions(self, start, end)
        self._plan.stream.trim_from(self._options.reader, end["offset"])
        return planned

    patch.setattr(_StreamReader, "partitions", eager)


def trims_before_the_release(patch: Patch) -> None:
    """Trim all written rows of a p-stream, not only those that its readers have released."""
    patch.setattr(PStream, "needed", lambda self: self.end)


def commits_before_segments_are_durable(patch: Patch) -> None:
    """Name segments in the log, and write them afterwards."""
    publish, commit = SegmentWriter._publish, CommitLog.commit
    late: list[Callable[[], None]] = []

    def later(self: SegmentWriter) -> None:
        files, before = self._files, len(self._segments)

        class Later:
            def publish(self, name: str, *parts: Any) -> None:
                late.append(lambda: files.publish(name, *parts))

        self._files = Later()  # type: ignore[assignment]
        with pytest.MonkeyPatch.context() as quiet:
            quiet.setattr("penstock.checkpointing.p_stream.segments.trace", lambda *_, **__: None)
            publish(self)
        self._files = files
        assert len(self._segments) > before

    def early(self: CommitLog, *args: Any, **kwargs: Any) -> bool:
        done = commit(self, *args, **kwargs)
        while late:
            late.pop()()
        return done

    patch.setattr(SegmentWriter, "_publish", later)
    patch.setattr(CommitLog, "commit", early)


def commits_a_batch_twice(patch: Patch) -> None:
    """Do not drop a micro-batch that the log has."""
    commit = CommitLog.commit

    def greedy(self: CommitLog, writer: str, batch: int, *args: Any, **kwargs: Any) -> bool:
        self.refresh()
        known = self.writers.get(writer)
        if known is not None:
            self.writers[writer] = WriterState(-1, known.session, known.clock, known.plan)
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(CommitLog, "refresh", lambda _: None)
            return commit(self, writer, batch, *args, **kwargs)

    patch.setattr(CommitLog, "commit", greedy)


def recovers_from_what_was_planned(patch: Patch) -> None:
    """Skip the rows of a micro-batch that was planned but is not committed."""
    progress = GraphDirectory.progress

    def too_new(self: GraphDirectory, query: str) -> QueryProgress:
        found = progress(self, query)
        return QueryProgress(found.id, found.planned, found.committed, self.batch_rows(query, found.planned))

    patch.setattr(GraphDirectory, "progress", too_new)


def recovers_state_that_is_not_committed(patch: Patch) -> None:
    """Load the newest file of a bucket, not the one that Spark's pointer names."""
    run = BucketTask.run

    def newest(self: Any, query: str, batch: int, bucket: int, pointer: Any, *args: Any) -> Any:
        files = open_files(self.state_location).child(query).child(self.name).child(f"{bucket:05d}")
        found = [
            one for facts in files.list() if (one := pointer_of(facts.name)) and one.version <= batch + 1
        ]
        newer = [one for one in found if pointer and one.version > pointer.version]
        return run(self, query, batch, bucket, newer[-1] if newer else pointer, *args)

    patch.setattr(BucketTask, "run", newest)


def deletes_by_age(patch: Patch) -> None:
    """Delete old files that are still in the chain of a newer version."""

    def old(self: BucketStore, held: Handle) -> list[str]:
        newest = held.pointer.version if held.pointer else 0
        numbers = {facts.name: number_of(facts.name) for facts in self.files.list()}
        return [name for name, number in numbers.items() if number and number < newest - 3]

    patch.setattr(BucketStore, "garbage", old)


def deletes_before_the_commit(patch: Patch) -> None:
    """Sweep as if a version that was just written were committed."""
    commit = BucketStore.commit

    def eager(self: BucketStore, state: Any, held: Handle) -> Handle:
        handle = commit(self, state, held)
        kept = {link.pointer.file_name for link in handle.links}
        with pytest.MonkeyPatch.context() as blind:
            names = [facts.name for facts in self.files.list() if facts.name not in kept]
            blind.setattr(BucketStore, "garbage", lambda *_: names)
            self.sweep(handle)
        return handle

    patch.setattr(BucketStore, "commit", eager)


def reads_what_is_not_committed(patch: Patch) -> None:
    """Plan rows that do not exist yet, after the end of the p-stream."""
    latest = _StreamReader.latestOffset

    def beyond(self: Any, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        found = latest(self, start, limit)
        return found | {"offset": found["offset"] + 1}

    patch.setattr(_StreamReader, "latestOffset", beyond)


def plans_other_rows_again(patch: Patch) -> None:
    """Plan a repeated micro-batch from the rows that exist now."""
    partitions = _StreamReader.partitions

    def afresh(self: Any, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        self._plan.stream.refresh()
        return partitions(self, start, end | {"offset": self._plan.stream.end})

    patch.setattr(_StreamReader, "partitions", afresh)


BROKEN: dict[str, Callable[[Patch], None]] = {
    one.__name__: one
    for one in (
        releases_before_the_checkpoint,
        trims_before_the_release,
        commits_before_segments_are_durable,
        commits_a_batch_twice,
        recovers_from_what_was_planned,
        recovers_state_that_is_not_committed,
        deletes_by_age,
        deletes_before_the_commit,
        reads_what_is_not_committed,
        plans_other_rows_again,
    )
}
