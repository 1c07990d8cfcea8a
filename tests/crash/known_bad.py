"""A daemon of Python workers with a broken protocol, which the crash tests have to find.

Spark starts this module in place of its own daemon (setting ``spark.python.daemon.module``); the
variable ``PENSTOCK_KNOWN_BAD`` names what is broken; without it nothing is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from penstock import _durable
from penstock.checkpointing import PUnit, decode
from penstock.errors import CorruptDataError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.spark_ext import daemon
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer, State


def _whole_at_each_commit() -> None:
    """Let each file stand alone, so that none before it is needed."""
    _patch(UpdateQueue, "delta", lambda queue: next(queue.snapshot()))
    _patch(BucketStore, "_adopt", lambda store, held, version: Handle())


def overwrites_in_place() -> None:
    """Keep one file a bucket, of a fixed name, and write each version over the one before."""

    def publish(path: Path, *content: bytes | memoryview, **options: object) -> None:
        path.write_bytes(b"".join(content))

    def trusting_read(self: BucketStore, pointer: Pointer) -> tuple[PUnit, int]:
        path = Path(self.files.path_of(pointer.file_name))
        content = _durable.read(path)
        return decode(content, path), len(content)

    _patch(_durable, "publish", publish)
    _patch(Pointer, "file_name", property(lambda self: "state.punit"))
    _patch(BucketStore, "_read", trusting_read)
    _whole_at_each_commit()


def releases_before_the_commit() -> None:
    """Delete what a new version does not need as soon as it is written, not when its pointer arrives."""
    commit = BucketStore.commit

    def eager(self: BucketStore, state: State, held: Handle) -> Handle:
        handle = commit(self, state, held)
        for link in held.links:
            _durable.delete(Path(self.files.path_of(link.pointer.file_name)))
        return handle

    _whole_at_each_commit()
    _patch(BucketStore, "commit", eager)


def starts_again_when_state_is_missing() -> None:
    """Take a file that is not there for the empty state, and write no file at every other commit."""
    load = BucketStore.load

    def forgiving(self: BucketStore, pointer: Pointer, state: State) -> Handle:
        try:
            return load(self, pointer, state)
        except CorruptDataError:
            return Handle()

    _patch(BucketStore, "load", forgiving)
    releases_before_the_commit()


KNOWN_BAD: dict[str, Callable[[], None]] = {
    protocol.__name__: protocol
    for protocol in (overwrites_in_place, releases_before_the_commit, starts_again_when_state_is_missing)
}


def _patch(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


if __name__ == "__main__":
    if broken := os.environ.get("PENSTOCK_KNOWN_BAD"):
        KNOWN_BAD[broken]()
    daemon.main()
