"""Rows of keys that went silent, in the results of queues and joins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.operators.queues.expiry import Expired
from penstock.operators.update_stream.lives import mark_rows, silent_rows
from penstock.operators.update_stream.stream import UpdateStream, to_times

__all__ = ["with_silent_rows"]


def with_silent_rows(
    batches: Sequence[pa.RecordBatch], expired: Expired, output: pa.Schema, stream: UpdateStream
) -> list[pa.RecordBatch]:
    """Add the mark of silent rows to results, and append a row for each key that left and was not deleted.

    Parameters
    ----------
    output : pyarrow.Schema
        The output columns, including the mark.
    stream : UpdateStream
        Defines the key, and the time with its type.
    """
    marked = [mark_rows(rows) for rows in batches]
    alive = np.flatnonzero(~expired.deleted)
    if len(alive):
        times = to_times(expired.times[alive], stream.schema.field(stream.time).type)
        keys = [column.take(pa.array(alive)) for column in expired.keys]
        marked.append(silent_rows(output, stream.key, keys, stream.time, times))
    return marked
