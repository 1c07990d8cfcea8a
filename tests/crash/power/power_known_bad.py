"""Workers with short chains of state and with broken protocols, for the queries of the power cuts.

Spark starts this module in place of its own daemon of Python workers (setting
``spark.python.daemon.module``); the variable ``PENSTOCK_KNOWN_BAD`` names what is broken; without it nothing
is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.types import StructType

from penstock import _durable
from penstock.spark_ext import daemon
from penstock.spark_ext.sources import p_stream_sink
from penstock.spark_ext.sources.p_stream_source import PStreamDataSource
from penstock.spark_ext.worker import bucket_task
from penstock.state_store.bucket_store import BucketStore
from penstock.state_store.snapshot_rule import SnapshotRule

__all__ = ["DAEMON", "SOURCES"]

DAEMON = "tests.crash.power.power_known_bad"
_KNOWN_BAD = "PENSTOCK_KNOWN_BAD"


def syncs_nothing() -> None:
    """Release and commit without syncing Spark's files, and drop micro-batches whose number is in the log."""

    def forget(path: Path | None = None) -> None:
        """Sync nothing."""

    _patch(_durable, "sync_file_system", forget)
    _patch(_durable, "sync_everything", forget)
    _patch(p_stream_sink, "_check_same_batch", lambda *_: None)


class SyncsNothing(PStreamDataSource):
    """The data source, whose processes on the driver's side sync nothing either."""

    parallelism = 2

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        syncs_nothing()
        return super().streamReader(schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        syncs_nothing()
        return super().streamWriter(schema, overwrite)


SOURCES = {"syncs_nothing": SyncsNothing}
"""Data sources that the power cuts have to find fault with, by the name of what is broken."""


def store_of_short_chains(*arguments: Any, **options: Any) -> BucketStore:
    """Return a store that releases files after a few micro-batches already."""
    return BucketStore(*arguments, **options | {"snapshots": SnapshotRule(max_deltas=3)})


def _patch(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)


if __name__ == "__main__":
    _patch(bucket_task, "BucketStore", store_of_short_chains)
    if os.environ.get(_KNOWN_BAD):
        syncs_nothing()
    daemon.main()
