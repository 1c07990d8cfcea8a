"""Conflation in a reader: keep the newest row of each key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.operators.scan.spec import LatestBy
from penstock.operators.update_stream.conflation import Conflation
from penstock.operators.update_stream.stream import UpdateStream, concat

__all__ = ["Latest"]


class Latest:
    """Keep the newest row of each key; if times are equal, the last row.

    All rows with a null in a key or time column are kept, so that the queue after the reader can count or
    refuse them.

    Parameters
    ----------
    latest_by : LatestBy
        The key and the time.
    schema : pyarrow.Schema
        The schema of the rows.

    Raises
    ------
    InvalidUsageError
        If a column cannot be a key or a time.
    """

    def __init__(self, latest_by: LatestBy, schema: pa.Schema) -> None:
        self._stream = UpdateStream(schema, latest_by.key, latest_by.time)
        self._schema = schema
        self._by_last = latest_by.by_last
        self._unusable: list[pa.RecordBatch] = []
        self._conflation = Conflation(self._stream)

    def add(self, rows: pa.Table) -> None:
        """Add the next rows."""
        for batch in rows.combine_chunks().to_batches():
            unusable = self._stream.find_unusable(batch)
            if unusable.any():
                self._unusable.append(batch.filter(pa.array(unusable)))
                batch = batch.filter(pa.array(~unusable))  # noqa: PLW2901 - the remaining rows
            if batch.num_rows:
                self._conflation.add(batch, self._conflation.rows_seen)

    def finish(self) -> pa.RecordBatch:
        """Return the newest rows and reset."""
        unusable, self._unusable = self._unusable, []
        if len(self._conflation):
            newest = self._conflation.finish()
            if self._by_last:
                newest = newest.take(np.argsort(newest.last))
            unusable = [newest.rows, *unusable]
        return concat(unusable) if unusable else pa.RecordBatch.from_pylist([], self._schema)
