"""The tuples that an update queue or union drops."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.operators.queues.accounts import NOWHERE
from penstock.operators.queues.key_records import KeyRecords
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.dropped import DUPLICATE, LATE, DroppedTuples
from penstock.operators.update_stream.stream import Integers, UpdateStream
from penstock.units import NEVER

__all__ = ["find_dropped", "find_replaced_duplicates"]


def find_dropped(
    stream: UpdateStream,
    records: KeyRecords,
    whole: Arrivals,
    arrivals: Arrivals,
    ids: Integers,
    accepted: npt.NDArray[np.bool_],
    newest: npt.NDArray[np.bool_],
    given_way: Integers,
    horizon: int,
) -> list[DroppedTuples]:
    """Return the arriving tuples that are late or duplicates. The caller has not changed the records yet.

    Parameters
    ----------
    whole, arrivals : Arrivals
        All tuples, and the newest tuple of each key.
    ids : int64 array
        The number of each key of `arrivals`.
    accepted, newest : bool arrays
        For each key, whether its newest tuple is not late, and whether this tuple will wait.
    given_way : int64 array
        The number of duplicates of each key.
    horizon : int
        Keys whose last time is at most this time may have left the state.
    """
    place = np.empty(len(records), np.int64)
    place[ids] = np.arange(len(ids))
    of = place[records.find(stream.keys(whole.rows))]
    repeats = np.zeros(len(whole), np.bool_)
    if stream.source:
        same = stream.times(whole.rows) == stream.times(arrivals.rows)[of]
        # The conflated arrival has the position of the tuple that will wait.
        repeats = (given_way > 0)[of] & same & ~(newest[of] & (whole.last == arrivals.last[of]))
    late = ~accepted[of] & ~repeats
    emitted = records["emitted"][ids][of]
    missed = np.where(emitted == NEVER, horizon + 1, emitted)
    return [
        *DroppedTuples.choose(whole.rows, late, LATE, missed),
        *DroppedTuples.choose(whole.rows, repeats, DUPLICATE),
    ]


def find_replaced_duplicates(
    stream: UpdateStream, records: KeyRecords, ids: Integers, times: Integers, newest: npt.NDArray[np.bool_]
) -> Integers:
    """For a union, return the keys whose waiting tuple is replaced by a tuple of the same time."""
    if not stream.source:
        return ids[:0]
    same = (records["location"][ids] != NOWHERE) & (times == records["waiting"][ids])
    return ids[newest & same]
