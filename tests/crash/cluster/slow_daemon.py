"""A daemon of Python workers whose tasks are slow at times, before or after they have committed their state.

Spark then starts a second attempt, and may take either. A task that is slow after its commit waits for the
commit of that second attempt, so that both have published the same version when Spark chooses. Spark starts
this module in place of its own daemon (setting ``spark.python.daemon.module``).
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from penstock.spark_ext import daemon
from penstock.state_store.bucket_store import BucketStore, Handle, State, pointer_of
from tests.servers.processes import until

_SIBLING_PATIENCE_S = 10.0
"""No second attempt may come: Spark has no free core, or its own was killed."""

DOUBLE_COMMITS = "PENSTOCK_DOUBLE_COMMITS"
"""Names the directory in which each version that two attempts committed leaves a file."""

_commit = BucketStore.commit


def _commit_slowly(self: BucketStore, state: State, held: Handle) -> Handle:
    if random.random() < 0.1:
        time.sleep(random.uniform(0.2, 1.0))  # work
    handle = _commit(self, state, held)
    assert handle.pointer is not None
    if random.random() < 0.15 and until(lambda: _has_sibling(self, handle), _SIBLING_PATIENCE_S):
        (Path(os.environ[DOUBLE_COMMITS]) / handle.pointer.file_name).touch()
    return handle


def _has_sibling(store: BucketStore, handle: Handle) -> bool:
    """Say whether another attempt has published the version at `handle`."""
    own = {link.pointer for link in handle.links}
    if handle.snapshot is not None:
        own.add(handle.snapshot.pointer)
    published = {pointer_of(facts.name) for facts in store.files.list()} - own
    return any(one and handle.pointer and one.version == handle.pointer.version for one in published)


if __name__ == "__main__":
    setattr(BucketStore, "commit", _commit_slowly)  # noqa: B010  # mypy knows methods as constant
    daemon.main()
