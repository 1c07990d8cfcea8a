"""A daemon of Python workers whose tasks are slow at times, before or after they have committed their state.

Spark then starts a second attempt, and may take either. It starts this module in place of its own daemon
(setting ``spark.python.daemon.module``).
"""

from __future__ import annotations

import random
import time

from penstock.spark_ext import daemon
from penstock.state_store.bucket_store import BucketStore, Handle, State

_commit = BucketStore.commit


def _be_slow() -> None:
    if random.random() < 0.15:
        time.sleep(random.uniform(0.2, 1.0))  # work


def _commit_slowly(self: BucketStore, state: State, held: Handle) -> Handle:
    _be_slow()
    handle = _commit(self, state, held)
    _be_slow()
    return handle


if __name__ == "__main__":
    setattr(BucketStore, "commit", _commit_slowly)  # noqa: B010  # mypy knows methods as constant
    daemon.main()
