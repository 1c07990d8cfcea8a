"""Predictions for the calls of an open database, many transactions at once (H-Store §5.3.2 to §5.3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.predicting.models.maintenance import LEAST_ACCURACY
from penstock.predicting.models.parameters import Parameters
from penstock.procedures.compiler.program import Program
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.partitions.predicted.prediction import Prediction
from penstock.procedures.texts import Numbers

if TYPE_CHECKING:
    from penstock.predicting.models.predictor import Predictor, ProcedureModels

__all__ = ["RunningPredictor"]

_MIX = np.uint64(0x9E3779B97F4A7C15)
_MOST_WRONG, _MOST_SKIPPED = 4, 64
_WINDOW = 1_000
"""The transactions of a kind after which the accuracy is looked at."""

Masks = npt.NDArray[np.uint64]


@dataclass(slots=True)
class _Known:
    """The predictions for transactions whose events agree in all that the models read."""

    partitions: int
    written: int
    undo: bool
    seen: dict[int, int]
    """How often each set of partitions was accessed since the last look at the accuracy."""


class _Kind:
    """The models of one kind of transactions, and what was predicted by them."""

    def __init__(self, models: ProcedureModels, parameters: Parameters) -> None:
        self.models, self.parameters = models, parameters
        self.numbers: dict[int, int] = {}
        self.known: list[_Known] = []
        self.right = self.total = 0
        self.recomputed = 0

    def look(self) -> None:
        """Take what transactions accessed as the prediction, if too few of the predictions were right."""
        if self.total < _WINDOW:
            return
        if self.right < LEAST_ACCURACY * self.total:
            self.recomputed += 1
            for one in self.known:
                if one.seen:
                    one.partitions = max(one.seen, key=one.seen.__getitem__)
                    one.written = one.partitions
        for one in self.known:
            one.seen.clear()
        self.right = self.total = 0


class RunningPredictor:
    """Predicts the transactions of an open database; see `TransactionPredictor`.

    Estimates are made once for all events that agree in what the models read. After four calls in sequence
    with a wrong prediction, the next one of the procedure runs without; then the next two, and so on.

    Parameters
    ----------
    predictor : Predictor
        The models.
    placements : mapping
        The placements of partitioned tables.
    """

    def __init__(self, predictor: Predictor, placements: Mapping[str, Placement]) -> None:
        self._predictor, self._placements = predictor, placements
        self._kinds: dict[str, list[_Kind]] = {}
        self._wrong: dict[str, int] = {}
        self._skipped: dict[str, int] = {}
        self._last: tuple[str, list[tuple[_Kind, Numbers, Numbers]], Masks] | None = None

    def recomputed(self) -> int:
        """Return how often the predictions of a kind were replaced by what transactions accessed."""
        return sum(kind.recomputed for kinds in self._kinds.values() for kind in kinds)

    def predict(self, program: Program, events: pa.RecordBatch) -> Prediction | None:
        """Return the predictions for transactions; None if it has no models of the program, or pauses."""
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
        for kind in kinds:
            places = np.arange(count)
            part = events
            if kind.models.kind is not None:
                attribute, value = kind.models.kind
                places = np.flatnonzero(events.column(attribute).to_numpy(zero_copy_only=False) == value)
                part = events.take(pa.array(places))
            if len(places):
                numbers = self._numbers(kind, program, part)
                used.append((kind, places, numbers))
                known = kind.known
                partitions[places] = np.array([one.partitions for one in known], np.uint64)[numbers]
                written[places] = np.array([one.written for one in known], np.uint64)[numbers]
                undo[places] = np.array([one.undo for one in known])[numbers]
        self._last = program.digest, used, partitions
        return Prediction(partitions, written, undo)

    def _kinds_of(self, program: Program) -> list[_Kind]:
        if program.digest not in self._kinds:
            self._kinds[program.digest] = [
                _Kind(models, models.parameters(program.event, self._placements, self._predictor.partitions))
                for models in self._predictor.procedures
                if models.digest == program.digest
            ]
        return self._kinds[program.digest]

    def _numbers(self, kind: _Kind, program: Program, events: pa.RecordBatch) -> Numbers:
        """Return the place in `_Kind.known` of each event."""
        models = kind.models
        model = models.choose(events, program.event, self._predictor.partitions)
        parameters = kind.parameters.read(events)
        codes = (model.astype(np.uint64) + np.uint64(1)) * _MIX
        for starts, values in parameters.values:
            if starts is None:
                codes = (codes ^ (values.astype(np.uint64) + np.uint64(2))) * _MIX
            else:
                codes = (codes ^ _hash_lists(starts, values)) * _MIX
            codes ^= codes >> np.uint64(29)
        distinct, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        found = []
        for code, event in zip(distinct.tolist(), first.tolist(), strict=True):
            number = kind.numbers.get(code)
            if number is None:
                one = models.estimate(
                    parameters, parameters.signature(event), int(model[event]), self._predictor.threshold
                )
                number = kind.numbers[code] = len(kind.known)
                kind.known.append(_Known(one.partitions, one.written, one.needs_undo, {}))
            found.append(number)
        return np.array(found, np.int64)[inverse]

    def observe(self, touched: Numbers) -> None:
        """Count which of the last predictions were right, and adapt if too few of them are."""
        if self._last is None:
            return
        digest, used, partitions = self._last
        self._wrong.pop(digest, None)
        masks = touched.view(np.uint64)
        for kind, places, numbers in used:
            kind.right += int((masks[places] == partitions[places]).sum())
            kind.total += len(places)
            both = np.stack([numbers.astype(np.uint64), masks[places]])
            pairs, counts = np.unique(both, axis=1, return_counts=True)
            for number, mask, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
                seen = kind.known[number].seen
                seen[mask] = seen.get(mask, 0) + count
            kind.look()

    def correct(self, event: int, touched: int) -> None:
        """Widen the prediction that was wrong, and pause."""
        if self._last is None:
            return
        digest, used, _ = self._last
        wrong = self._wrong[digest] = self._wrong.get(digest, 0) + 1
        self._skipped[digest] = min(2 ** (wrong - _MOST_WRONG), _MOST_SKIPPED) if wrong >= _MOST_WRONG else 0
        for kind, places, numbers in used:
            at = np.flatnonzero(places == event)
            if len(at):
                one = kind.known[int(numbers[at[0]])]
                mask = touched & ((1 << self._predictor.partitions) - 1)
                if mask & ~one.partitions:
                    one.written |= mask if one.written else 0
                    one.partitions |= mask
                else:  # it was rejected, or wrote where it was expected to read
                    one.written, one.undo = one.partitions, True


def _hash_lists(starts: Numbers, values: Numbers) -> Masks:
    """Return a number for each list: equal lists have equal ones, and others hardly ever."""
    sizes, begins = np.diff(starts), starts - starts[0]
    flat = values[starts[0] : starts[-1]].astype(np.uint64) + np.uint64(3)
    inside = np.arange(len(flat)) - np.repeat(begins[:-1], sizes)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(flat * _powers(inside), dtype=np.uint64)])
    return (sums[begins[1:]] - sums[begins[:-1]]) * _MIX + sizes.astype(np.uint64)


def _powers(exponents: Numbers) -> Masks:
    """Return powers of an odd number, modulo 2 ** 64."""
    most = int(exponents.max(initial=0)) + 1
    return np.cumprod(np.full(most, _MIX, np.uint64), dtype=np.uint64)[exponents]
