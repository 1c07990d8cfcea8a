"""Continuations: versions of buckets that include the changes that forwarded transactions made.

The task of a bucket commits version v. Version v + 1 is the *continuation* of version v: the coordinator
publishes it in the same micro-batch. The task already returns the pointer to version v + 1. Spark commits a
micro-batch after all of its tasks, so the file of a committed pointer exists.
`docs/design/0019-forwarding.md` has the invariants.
"""

from __future__ import annotations

import pyarrow as pa

from penstock._failpoints import failpoint
from penstock.checkpointing import PUnit
from penstock.errors import ConflictError, CorruptDataError
from penstock.procedures.partitions.bucket_forwarding import Changes
from penstock.procedures.schema import TableSpec
from penstock.state_store.bucket_store import BucketStore, FileId, Pointer, next_pointer

__all__ = ["continuation_of", "publish_continuation"]


def continuation_of(pointer: Pointer, batch: int) -> Pointer:
    """Return the pointer to the continuation of the version at `pointer`, which micro-batch `batch` made."""
    return next_pointer(pointer, FileId(f"continuation{batch}"))


def publish_continuation(
    store: BucketStore, pointer: Pointer, batch: int, changes: Changes, tables: dict[str, TableSpec]
) -> None:
    """Publish the continuation of the version at `pointer`, unless another attempt has published it.

    Raises
    ------
    CorruptDataError
        If the continuation exists with different changes, or the version at `pointer` is missing or damaged.
    UnavailableError
        If the file system refuses.
    """
    meta = store.read_version(pointer)[1].meta
    unit = PUnit("delta", {**meta, "rows": meta["rows"] + changes.more_rows}, changes.blocks, packed=True)
    following = continuation_of(pointer, batch)
    try:
        store.publish_next(pointer, following.file_id, unit)
    except ConflictError:
        stored = store.read_version(following)[1]
        if _content(stored, tables) != _content(unit, tables):
            raise CorruptDataError(
                "changes by forwarded transactions are ahead of the checkpoint, and differ",
                file=store.files.path_of(following.file_name),
                batch=batch,
                hint="restore the checkpoint as it was; or start with a new checkpoint",
            ) from None
    failpoint("coordinator.after_continuation")


def _content(unit: PUnit, tables: dict[str, TableSpec]) -> str:
    """Return the content of a continuation as a text to compare."""
    rows = {}
    for name in sorted(unit.blocks):
        table, _, part = name.rpartition("/")
        schema: pa.Schema = tables[table].key_schema if part == "tombstones" else tables[table].schema
        rows[name] = unit.block(name, schema).to_pylist()
    return repr((unit.meta["transactions"], unit.meta["rows"], rows))
