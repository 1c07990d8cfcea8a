"""Classes of keys: the class of each tuple, and the keys that must be served first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.freshness.contract import FreshnessContract
from penstock.sql.evaluate import evaluate
from penstock.sql.expression import Expression

if TYPE_CHECKING:
    from penstock.operators.scheduling.abc import Scheduler

__all__ = ["KeyClasses", "list_urgent", "pop_urgent"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyClasses:
    """The classes of keys: a key is in the class that its newest tuple names.

    Parameters
    ----------
    by : str
        A column, or an SQL expression over the columns of a tuple. Its value as text is the class.
    names : tuple of str
        The classes, from the most to the least important class. If a tuple's class is not in this list, or is
        null, the tuple belongs to the last class.
    """

    by: str
    names: tuple[str, ...]

    @staticmethod
    def of(contract: FreshnessContract) -> KeyClasses | None:
        """Return the classes of a contract; None if the contract has no classes."""
        return None if contract.by is None else KeyClasses(contract.by, contract.classes)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that determine the class of a tuple."""
        return Expression.parse(self.by).columns

    def number(self, rows: pa.RecordBatch) -> Integers:
        """Return the number of each tuple's class.

        Raises
        ------
        InvalidUsageError
            If the expression cannot be evaluated.
        """
        values = pc.cast(evaluate(Expression.parse(self.by), pa.Table.from_batches([rows])), pa.string())
        found: pa.ChunkedArray[Any] = pc.index_in(values, pa.array(self.names, pa.string()))
        numbers: Integers = pc.fill_null(found, len(self.names) - 1).to_numpy().astype(np.int64)
        return numbers


def list_urgent(
    ids: Integers, staleness_us: Integers, classes: Integers | None, urgent_us: Sequence[int]
) -> list[Integers]:
    """Return, for each promise that may break, the keys that would break the promise if they waited longer.

    Parameters
    ----------
    ids, staleness_us : int64 array
        The waiting keys and their staleness.
    classes : int64 array or None
        The class of each key; None if all keys have the first promise.
    urgent_us : sequence of int
        For each promise, the staleness from which a key must be served now.
    """
    found = []
    for number, least_us in enumerate(urgent_us):
        mask = staleness_us >= least_us
        if classes is not None:
            mask &= classes == number
        if mask.any():
            found.append(ids[mask])
    return found


def pop_urgent(
    scheduler: Scheduler, limit: int, urgent: Sequence[Integers], keys: int, now_us: int
) -> Integers:
    """Remove and return up to `limit` keys: the urgent keys of each class, then other keys by the policy.

    Parameters
    ----------
    urgent : sequence of int64 array
        The output of `list_urgent`.
    keys : int
        An upper bound of all key numbers.
    """
    chosen, left = [], limit
    for ids in urgent:
        held = np.ones(keys, np.int64)
        held[ids] = 0
        chosen.append(scheduler.pop(left, held, now_us=now_us))
        left -= len(chosen[-1])
    chosen.append(scheduler.pop(left, now_us=now_us))
    return np.concatenate(chosen)
