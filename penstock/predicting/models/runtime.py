"""Predict all transactions of a call of an open database together (H-Store §5.3.2 to §5.3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import GOLDEN
from penstock.predicting.models.parameters import (
    AttributeKey,
    AttributePartitions,
    EventParameters,
    Parameters,
)
from penstock.predicting.models.runtime_kernels import count_votes, find_numbers
from penstock.procedures.compiler.program import Program
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.partitions.predicted.prediction import Prediction
from penstock.procedures.texts import Numbers

if TYPE_CHECKING:
    from penstock.predicting.models.predictor import Predictor, ProcedureModels

__all__ = ["RunningPredictor"]

_MAX_WRONG, _MAX_SKIPPED = 4, 64
_TRANSACTIONS_PER_CHECK = 1_000
"""The accuracy of a kind of transactions is checked after this many of its transactions."""
_MIN_ACCURACY = 0.75
"""If a smaller share of predictions is right, observed accesses replace the predictions."""
_MIN_SLOTS = 1_024
_MAX_KNOWN = 1 << 20
"""After this many predictions for a kind of transactions, all predictions for the kind are dropped."""

Masks = npt.NDArray[np.uint64]


class _Kind:
    """The models for one kind of transactions, and the predictions that they have made.

    Transactions share a prediction if their events are equal in all attributes that the models read. Each
    prediction has a number.
    """

    def __init__(self, models: ProcedureModels, parameters: Parameters, threshold: float) -> None:
        self.models, self.parameters = models, parameters
        self._walker = models.walker(parameters, threshold)
        self.recomputed = 0
        self._forget()

    def _forget(self) -> None:
        self._known = self.right = self.total = 0
        self._slots, self._slot_numbers = np.zeros(_MIN_SLOTS, np.uint64), np.full(_MIN_SLOTS, -1)
        self.partitions, self.written, self._candidates = (np.zeros(0, np.uint64) for _ in range(3))
        self.undo, self._votes = np.zeros(0, np.bool_), np.zeros(0, np.int64)

    def numbers(self, codes: Masks, values: EventParameters, events: Numbers, models: Numbers) -> Numbers:
        """Return the number of each event's prediction; make predictions for events with new hash codes."""
        if self._known > _MAX_KNOWN:
            self._forget()
        self._make_room(len(codes))
        numbers, first = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        new = find_numbers(codes, self._slots, self._slot_numbers, self._known, numbers, first)
        if new:
            places = first[:new]
            at = slice(self._known, self._known + new)
            walked = self._walker.walk(values, events[places], models[places])
            self.partitions[at], self.written[at], self.undo[at] = walked
            self._known += new
        return numbers

    def _make_room(self, more: int) -> None:
        """Grow the arrays so that they have room for `more` new codes."""
        needed = self._known + more
        if needed > len(self._votes):
            size = 2 * needed
            for name in ("partitions", "written", "undo", "_candidates", "_votes"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros(size - len(array), array.dtype)]))
        if 2 * needed > len(self._slots):
            size = 1 << int(4 * needed).bit_length()
            full = self._slot_numbers >= 0
            codes = self._slots[full][np.argsort(self._slot_numbers[full])]
            self._slots, self._slot_numbers = np.zeros(size, np.uint64), np.full(size, -1)
            both = np.empty((2, len(codes)), np.int64)
            find_numbers(codes, self._slots, self._slot_numbers, 0, *both)

    def observe(self, numbers: Numbers, touched: Masks, predicted: Masks) -> None:
        """Count the right predictions; if too few are right, replace predictions by observed accesses."""
        self.right += count_votes(numbers, touched, predicted, self._candidates, self._votes)
        self.total += len(numbers)
        if self.total < _TRANSACTIONS_PER_CHECK:
            return
        if self.right < _MIN_ACCURACY * self.total:
            self.recomputed += 1
            seen = self._votes > 0
            self.partitions[seen] = self.written[seen] = self._candidates[seen]
        self._votes[:] = 0
        self.right = self.total = 0

    def widen(self, number: int, touched: int) -> None:
        """Correct a wrong prediction, given the partitions that its transaction accessed."""
        mask = np.uint64(touched)
        if mask & ~self.partitions[number]:
            if self.written[number]:
                self.written[number] |= mask
            self.partitions[number] |= mask
        else:  # the transaction was rejected, or wrote where a read was expected
            self.written[number], self.undo[number] = self.partitions[number], True


class RunningPredictor:
    """Predicts the transactions of an open database; see `TransactionPredictor`.

    All events that are equal in the attributes that the models read share one estimate. After four calls in a
    row with a wrong prediction, the procedure's next call runs without predictions. Each further wrong call
    in a row doubles the number of calls that run without predictions.

    Parameters
    ----------
    predictor : Predictor
        The predictor.
    placements : mapping
        The placements of partitioned tables.
    """

    def __init__(self, predictor: Predictor, placements: Mapping[str, Placement]) -> None:
        self._predictor, self._placements = predictor, placements
        self._kinds: dict[str, list[_Kind]] = {}
        self._wrong: dict[str, int] = {}
        self._skipped: dict[str, int] = {}
        self._last: tuple[str, list[tuple[_Kind, Numbers, Numbers]], Masks] | None = None

    def count_recomputations(self) -> int:
        """Return how often observed accesses have replaced the predictions for a kind of transactions."""
        return sum(kind.recomputed for kinds in self._kinds.values() for kind in kinds)

    def predict(self, program: Program, events: pa.RecordBatch) -> Prediction | None:
        """Return predictions for transactions; None if the procedure has no models, or during a pause."""
        kinds = self._kinds_of(program)
        if not kinds:
            return None
        if self._skipped.get(program.digest, 0) > 0:
            self._skipped[program.digest] -= 1
            return None
        count = events.num_rows
        every = (1 << self._predictor.partitions) - 1
        partitions, written = np.full(count, every, np.uint64), np.full(count, every, np.uint64)
        undo = np.ones(count, np.bool_)
        used = []
        known: dict[AttributeKey, AttributePartitions] = {}
        for kind in kinds:
            places = np.arange(count)
            if kind.models.kind is not None:
                attribute, value = kind.models.kind
                places = np.flatnonzero(events.column(attribute).to_numpy(zero_copy_only=False) == value)
            if len(places):
                numbers = self._numbers(kind, program, events, places, known)
                used.append((kind, places, numbers))
                partitions[places] = kind.partitions[numbers]
                written[places], undo[places] = kind.written[numbers], kind.undo[numbers]
        self._last = program.digest, used, partitions
        return Prediction(partitions, written, undo)

    def _kinds_of(self, program: Program) -> list[_Kind]:
        if program.digest not in self._kinds:
            self._kinds[program.digest] = [
                _Kind(
                    models,
                    models.parameters(program.event, self._placements, self._predictor.partitions),
                    self._predictor.threshold,
                )
                for models in self._predictor.procedures
                if models.digest == program.digest
            ]
        return self._kinds[program.digest]

    def _numbers(
        self,
        kind: _Kind,
        program: Program,
        events: pa.RecordBatch,
        places: Numbers,
        known: dict[AttributeKey, AttributePartitions],
    ) -> Numbers:
        """Return, for the event at each position in `places`, the number of its prediction."""
        models = kind.models
        model = np.zeros(len(places), np.int64)
        if models.features:
            part = events if len(places) == events.num_rows else events.take(pa.array(places))
            model = models.choose(part, program.event, self._predictor.partitions)
        parameters = kind.parameters.read(events, known)
        codes = (model.astype(np.uint64) + np.uint64(1)) * GOLDEN
        for starts, values in parameters.values:
            if starts is None:
                codes = (codes ^ (values[places].astype(np.uint64) + np.uint64(2))) * GOLDEN
            else:
                codes = (codes ^ _hash_lists(starts, values)[places]) * GOLDEN
            codes ^= codes >> np.uint64(29)
        return kind.numbers(codes, parameters, places, model)

    def observe(self, touched: Numbers) -> None:
        """Count the right predictions of the last call, and adapt the models if there are too few."""
        if self._last is None:
            return
        digest, used, partitions = self._last
        self._wrong.pop(digest, None)
        masks = touched.view(np.uint64)
        for kind, places, numbers in used:
            kind.observe(numbers, masks[places], partitions[places])

    def correct(self, event: int, touched: int) -> None:
        """Correct the wrong prediction of an event; after several wrong calls, pause predictions."""
        if self._last is None:
            return
        digest, used, _ = self._last
        wrong = self._wrong[digest] = self._wrong.get(digest, 0) + 1
        self._skipped[digest] = min(2 ** (wrong - _MAX_WRONG), _MAX_SKIPPED) if wrong >= _MAX_WRONG else 0
        for kind, places, numbers in used:
            at = np.flatnonzero(places == event)
            if len(at):
                kind.widen(int(numbers[at[0]]), touched & ((1 << self._predictor.partitions) - 1))


def _hash_lists(starts: Numbers, values: Numbers) -> Masks:
    """Return a hash of each list; different lists almost surely have different hashes."""
    sizes, begins = np.diff(starts), starts - starts[0]
    flat = values[starts[0] : starts[-1]].astype(np.uint64) + np.uint64(3)
    inside = np.arange(len(flat)) - np.repeat(begins[:-1], sizes)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(flat * _powers(inside), dtype=np.uint64)])
    return (sums[begins[1:]] - sums[begins[:-1]]) * GOLDEN + sizes.astype(np.uint64)


def _powers(exponents: Numbers) -> Masks:
    """Return powers of an odd number, modulo 2 ** 64."""
    most = int(exponents.max(initial=0)) + 1
    return np.cumprod(np.full(most, GOLDEN, np.uint64), dtype=np.uint64)[exponents]
