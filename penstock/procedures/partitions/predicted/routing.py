"""Predictions by routing attributes: a transaction accesses only the partition that the hash gives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidUsageError, did_you_mean
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.partitions.placement import Placement, hash_values
from penstock.procedures.partitions.predicted.guards import can_guard
from penstock.procedures.partitions.predicted.prediction import Prediction, TransactionPredictor
from penstock.procedures.partitions.routes import find_route
from penstock.procedures.schema import Kind
from penstock.procedures.texts import Numbers
from penstock.state_store.keys.key_words import buckets_of

__all__ = ["AttributePredictor", "check_routing", "routing_attributes", "routing_obstacle"]

MAX_WRONG, MAX_SKIPPED = 4, 64
"""After `MAX_WRONG` wrong calls in a row, the next call runs without predictions.

Each further wrong call in a row doubles the number of calls without predictions, up to `MAX_SKIPPED`.
"""


def routing_attributes(program: Program | PlainProgram) -> tuple[str, ...]:
    """Return the attributes of an event that may route its transaction."""
    if isinstance(program, PlainProgram):
        return ()
    return tuple(
        column.name
        for column in program.event
        if not column.is_list and not column.kind.is_interned and column.kind is not Kind.FLOAT
    )


def routing_obstacle(program: Program | PlainProgram, placements: Mapping[str, Placement]) -> str | None:
    """Return why no attribute can route a program's transactions; None if an attribute can."""
    if find_route(program, placements).obstacle is None:
        return "its event determines the partitions already"
    if isinstance(program, PlainProgram) or not can_guard(program, placements):
        return (
            "routing is for compiled procedures without route=, streams and windows, over tables that are "
            "partitioned by one column of integers, decimals, dates or times"
        )
    return None


def check_routing(
    name: str, attribute: str, program: Program | PlainProgram, placements: Mapping[str, Placement]
) -> None:
    """Refuse a routing attribute that a procedure cannot have.

    Raises
    ------
    InvalidUsageError
        If the procedure cannot have this routing attribute.
    """
    known = routing_attributes(program)
    if attribute not in known:
        raise InvalidUsageError(
            "this attribute cannot route transactions",
            procedure=name,
            routing=attribute,
            hint=did_you_mean(attribute, known, "attributes"),
        )
    if (reason := routing_obstacle(program, placements)) is not None:
        raise InvalidUsageError(
            "the procedure cannot have a routing attribute",
            procedure=name,
            routing=attribute,
            reason=reason,
            hint="leave out its routing",
        )


class AttributePredictor:
    """Predicts transactions by routing attributes; see `TransactionPredictor`.

    After four calls in a row with a wrong prediction, the procedure's next call runs without predictions.
    Each further wrong call in a row doubles the number of calls that run without predictions.

    Parameters
    ----------
    attributes : mapping of str to str
        The routing attribute of each procedure that has one.
    partitions : int
        The number of partitions.
    placements : mapping
        The placements of partitioned tables.
    others : TransactionPredictor, optional
        Predicts all other transactions.
    """

    def __init__(
        self,
        attributes: Mapping[str, str],
        partitions: int,
        placements: Mapping[str, Placement],
        others: TransactionPredictor | None,
    ) -> None:
        self.attributes, self._partitions, self._others = dict(attributes), partitions, others
        self._placements, self._checked = placements, set[str]()
        self._wrong: dict[str, int] = {}
        self._skipped: dict[str, int] = {}
        self._last: str | None = None

    def predict(self, program: Program, events: pa.RecordBatch) -> Prediction | None:
        """Return the predictions for transactions; None if there are none, or during a pause.

        Raises
        ------
        InvalidUsageError
            If the attribute cannot route transactions.
        """
        attribute = self.attributes.get(program.name)
        if attribute is None:
            self._last = None
            return None if self._others is None else self._others.predict(program, events)
        if program.digest not in self._checked:  # `open` checks only declared events
            check_routing(program.name, attribute, program, self._placements)
            self._checked.add(program.digest)
        if self._skipped.get(program.name, 0) > 0:
            self._skipped[program.name] -= 1
            return None
        self._last = program.name
        column = next(one for one in program.event if one.name == attribute)
        values = events.column(attribute)
        homes = buckets_of(hash_values(column, values).view(np.uint64), self._partitions)
        masks = np.uint64(1) << homes.astype(np.uint64)  # a null may give any partition
        return Prediction(masks, masks, np.ones(events.num_rows, np.bool_))

    def observe(self, touched: Numbers) -> None:
        """Record that the last prediction was right."""
        if self._last is not None:
            self._wrong.pop(self._last, None)
        elif self._others is not None:
            self._others.observe(touched)

    def correct(self, event: int, touched: int) -> None:
        """Record that the last prediction was wrong; pause after several wrong predictions in a row."""
        if self._last is None:
            if self._others is not None:
                self._others.correct(event, touched)
            return
        wrong = self._wrong[self._last] = self._wrong.get(self._last, 0) + 1
        if wrong >= MAX_WRONG:
            self._skipped[self._last] = min(2 ** (wrong - MAX_WRONG), MAX_SKIPPED)
