"""The interface of a predictor of transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.procedures.compiler.program import Program
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.texts import Numbers

__all__ = ["Prediction", "StoredPredictor", "TransactionPredictor"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predictions for the transactions of a call.

    If a prediction is wrong, the call is undone and runs again without predictions.

    Attributes
    ----------
    partitions : ndarray of uint64
        For each transaction, a bit for each partition that it accesses (OP1 and OP2).
    written : ndarray of uint64
        For each transaction, a bit for each partition that it writes. In every other partition, the
        transaction is finished when it has read its rows there (OP4).
    undo : ndarray of bool
        For each transaction, whether it may be rejected after a write, so that it needs an undo log (OP3).
    """

    partitions: npt.NDArray[np.uint64]
    written: npt.NDArray[np.uint64]
    undo: npt.NDArray[np.bool_]


class StoredPredictor(Protocol):
    """Models of a database's transactions. Pass them to `Database.open`."""

    def bind(
        self, database: str, partitions: int, placements: Mapping[str, Placement]
    ) -> TransactionPredictor:
        """Return the predictor of an open database.

        Raises
        ------
        InvalidUsageError
            If the models are for a different database, or for different partitions.
        """


class TransactionPredictor(Protocol):
    """Predicts what transactions do. One thread at a time calls it."""

    def predict(self, program: Program, events: pa.RecordBatch) -> Prediction | None:
        """Return the predictions for transactions; None if there are none."""

    def observe(self, touched: Numbers) -> None:
        """Learn from the last prediction, which was right.

        For each transaction, `touched` has a bit for each partition that it accessed.
        """

    def correct(self, event: int, touched: int) -> None:
        """Learn from the last prediction, which was wrong for the transaction `event`.

        `touched` has a bit for each partition that the transaction accessed until it was stopped.
        """
