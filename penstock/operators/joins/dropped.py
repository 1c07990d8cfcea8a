"""The tuples that a join drops."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.joins.key_lives import KeyLives
from penstock.operators.update_stream.dropped import DUPLICATE, LATE, DroppedTuples
from penstock.operators.update_stream.stream import Integers
from penstock.units import FOREVER, NEVER

__all__ = ["dropped_in"]


def dropped_in(
    rows: pa.RecordBatch,
    late: npt.NDArray[np.bool_],
    duplicates: Integers,
    newest_match: Integers,
    deleted_until: Integers | None,
    within: int,
    watermark: int | None,
    lives: KeyLives | None,
) -> list[DroppedTuples]:
    """Return the late tuples, each with the first time that would not have been late, and the duplicates.

    Parameters
    ----------
    late : bool array
        The mask of the late tuples.
    duplicates : int64 array
        The positions of the duplicates.
    newest_match : int64 array
        The time of the newest match of each tuple's key, or `NEVER`.
    deleted_until : int64 array, optional
        The time of the newest earlier delete of each tuple's key on its side, or `NEVER`.
    """
    # A difference below the least integer would wrap around.
    missed = np.maximum(newest_match, NEVER + within) - within
    bounds = [] if watermark is None else [watermark]
    bounds += [] if lives is None else [lives.horizon + 1]
    missed = np.maximum(missed, max(bounds, default=NEVER))
    if deleted_until is not None:
        missed = np.maximum(missed, np.minimum(deleted_until, FOREVER - 1) + 1)
    dropped = DroppedTuples.choose(rows, late, LATE, missed)
    if len(duplicates):
        dropped.append(DroppedTuples(rows.take(pa.array(duplicates)), DUPLICATE))
    return dropped
