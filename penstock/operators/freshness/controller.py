"""Choose how much a micro-batch serves, so that a freshness contract holds.

A cycle lasts from the start of a micro-batch to the start of the next micro-batch. A cycle that serves n
tuples takes ``F + s n``. F is the fixed cost (planning, logs, commit, other operators), and s is the cost of
a tuple in the operator and downstream of it. `Fit` estimates F and s from past cycles. A budget of time B
serves ``B / s`` tuples, so a cycle takes ``F + B``.

For a class of keys, let U be the time to serve each waiting key of this class and of more important classes
once. A row waits up to one cycle until a micro-batch takes it. If U fits into the budget, the row's result
leaves one cycle later. Otherwise the row is served after U / B cycles. So the staleness of a result is at
most about ::

    (F + B) max(2, 1 + U / B)

A contract allows an interval of budgets (`allowed_budgets`). With a larger budget, the fixed cost is a
smaller part of each cycle. So the controller takes the greatest budget that keeps the promise of every class,
with a margin. If the promise of a class cannot hold, staleness of this class is least at the budget sqrt(F
U). The controller takes this budget, limited to the interval that the more important classes allow.

All functions here are pure functions of the state and the measurements of a micro-batch; nothing reads a
clock. The state is stored with the bucket's version, and times come from the recorded clock. So a micro-batch
that runs again makes the same decisions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.checkpointing.fields import Fields
from penstock.operators.freshness.class_state import ClassState, Stretch, read_class
from penstock.operators.freshness.contract import FreshnessContract

if TYPE_CHECKING:
    from penstock.operators.scheduling.staleness import Staleness

__all__ = [
    "LONGEST_INTERVAL",
    "ControllerState",
    "Decision",
    "Fit",
    "allowed_budgets",
    "greatest_work",
    "plan",
    "update_controller",
]

MARGIN = 0.8
"""Budgets are planned for this share of the promised limit."""
_CYCLE_WEIGHT = 0.15
"""Weight of the newest cycle in `Fit`."""
_MIN_SURPRISING_RATIO = 2.0
"""A cycle that took this many times longer, or shorter, than expected has more weight."""
_SURPRISING_CYCLE_WEIGHT = 0.5
_WAITING_WEIGHT = 0.3
"""The weight of the newest number of waiting keys in the smoothed number."""
_MIN_SPREAD_TO_FIT = 0.1
"""If the numbers of served tuples vary less than this, relative to their mean, cycles show little about the
cost of a tuple."""
_LONGEST_JUMP = 4.0
"""A cycle that takes more than this multiple of the expected duration may be a pause, such as downtime. It is
learned only if the next measured cycle is surprisingly long as well. Until then, the controller assumes that
every row costs as much as in the long cycle. A micro-batch serves as many rows as then take
`_MIN_SURPRISING_RATIO` times the usual duration, or the budget if that is longer. A learned cycle is capped
at this multiple of the expected or promised duration, so that it fades quickly."""
_MIN_CHANGE = 0.15
"""A budget, or a trigger interval, changes only by more than this share."""
_INTERVAL_SHARE_OF_CYCLE = 0.5
"""A trigger interval is this share of a cycle that uses up the budget."""
LONGEST_INTERVAL = 0.2
"""A trigger interval is at most this share of the tightest limit."""
_LONGEST_PACED = 1.1
"""A cycle up to this multiple of the bucket's trigger interval may have waited for the trigger. A cycle can
be shorter than the bucket's interval, because the query uses the least interval of all buckets. It can be a
little longer, because the task starts a little earlier or later after each trigger."""
_TRIAL_GROWTH = 1.5
"""To learn the cost of a tuple, a micro-batch serves this multiple of the tuples that recent micro-batches
served."""
_FIRST_ROWS = 1024
_ROWS_GROWTH = 4.0
"""A micro-batch serves at most this multiple of the rows that recent micro-batches served, because the cost
of a row may grow with the number of rows."""
_ROWS_DECAY = 0.9


@dataclass(frozen=True, slots=True)
class Fit:
    """The duration of a cycle as a linear function of served tuples; old cycles lose weight exponentially.

    Attributes
    ----------
    rows, cycle_us : float
        The mean number of served tuples, and the mean duration.
    variance, covariance : float
        The variance of the number of tuples, and its covariance with the duration.
    slope_us : float
        The cost of a tuple, estimated from cycles with different numbers of tuples. While all cycles serve
        equally many tuples (`is_certain` is false), the estimate does not change.
    row_us : float
        Mean cost of a tuple within the operator; 0 while unknown.
    """

    rows: float = 0.0
    cycle_us: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0
    slope_us: float = 0.0
    row_us: float = 0.0

    @property
    def cost_us(self) -> float:
        """The cost of a tuple in a cycle."""
        return max(self.slope_us, self.row_us, 1e-3)

    @property
    def fixed_us(self) -> float:
        """The fixed cost of a cycle."""
        return max(self.cycle_us - self.cost_us * self.rows, 0.0)

    @property
    def is_certain(self) -> bool:
        """Return whether the numbers of tuples differed enough to separate both costs."""
        return self.variance > self._doubt

    @property
    def _doubt(self) -> float:
        return (_MIN_SPREAD_TO_FIT * self.rows) ** 2 + 1e-9

    def expect(self, rows: float) -> float:
        """Return the expected duration of a cycle."""
        return self.fixed_us + self.cost_us * rows

    def add(self, rows: int, cycle_us: float, limit_us: float) -> Fit:
        """Return the fit with one more cycle; `limit_us` is the greatest promised staleness."""
        if self.cycle_us == 0.0:
            return replace(self, rows=float(rows), cycle_us=cycle_us)
        expected_us = max(self.expect(rows), 1.0)
        cycle_us = min(cycle_us, _LONGEST_JUMP * max(expected_us, self.cycle_us, limit_us))
        surprising = not 1 / _MIN_SURPRISING_RATIO < cycle_us / expected_us < _MIN_SURPRISING_RATIO
        weight = _SURPRISING_CYCLE_WEIGHT if surprising else _CYCLE_WEIGHT
        more, longer = rows - self.rows, cycle_us - self.cycle_us
        mean, mean_us = self.rows + weight * more, self.cycle_us + weight * longer
        variance = (1 - weight) * (self.variance + weight * more * more)
        covariance = (1 - weight) * (self.covariance + weight * more * longer)
        fit = Fit(mean, mean_us, variance, covariance, self.slope_us, self.row_us)
        error_us = (covariance - self.slope_us * variance) / (variance + fit._doubt)
        slope_us = min(max(self.slope_us + error_us, 0.0), mean_us / max(mean, 1e-9))
        return replace(fit, slope_us=slope_us)


def _read_fit(fields: Fields) -> Fit:
    return Fit(*(fields.real(one.name) for one in dataclasses.fields(Fit)))


@dataclass(frozen=True, slots=True)
class ControllerState:
    """The controller's memory of one bucket.

    Attributes
    ----------
    fit : Fit
        The cost of a cycle.
    classes : tuple of ClassState
        The state of each promise; empty before the first micro-batch.
    budget_us : float
        The budget of the last micro-batch; 0 before the first.
    limit : int
        The number of tuples that the last micro-batch was allowed to serve.
    reached : float
        The greatest number of tuples that a recent micro-batch served.
    started_us, finished_us : int
        Start and end of the last micro-batch in this bucket; 0 before the first.
    served, left : int
        Tuples that the last micro-batch served, and tuples that still waited after it.
    interval_us : int
        The trigger interval after the last micro-batch; 0 if the next micro-batch starts at once.
    doubted : Fit or None
        The fit including the last measured cycle, if this cycle was so long that it may have been a pause.
    rest_us : float
        The time from the end of the operator's work to the end of the last measured cycle, mostly in the
        sink.
    """

    fit: Fit = field(default_factory=Fit)
    classes: tuple[ClassState, ...] = ()
    budget_us: float = 0.0
    limit: int = 0
    reached: float = 0.0
    started_us: int = 0
    finished_us: int = 0
    served: int = 0
    left: int = 0
    interval_us: int = 0
    doubted: Fit | None = field(default=None, kw_only=True)
    rest_us: float = field(default=0.0, kw_only=True)

    @property
    def cycle_us(self) -> float:
        """The expected duration of a cycle that uses up the budget."""
        return self.fit.fixed_us + self.budget_us

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, for `from_fields`."""
        return asdict(self)

    @staticmethod
    def from_fields(fields: Fields) -> ControllerState:
        """Restore the output of `to_json`.

        Raises
        ------
        CorruptDataError
            If a field is missing or malformed.
        """
        newer = [name for name in ("interval_us",) if fields.has(name)]
        state = ControllerState(
            _read_fit(fields.fields("fit")),
            tuple(read_class(one) for one in fields.objects("classes")),
            fields.real("budget_us"),
            fields.count("limit"),
            fields.real("reached"),
            *(fields.count(name) for name in ("started_us", "finished_us", "served", "left", *newer)),
        )
        doubted = _read_fit(fields.fields("doubted")) if fields.has("doubted") else None
        return replace(
            state, doubted=doubted, rest_us=fields.real("rest_us") if fields.has("rest_us") else 0.0
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The limits for a micro-batch, and the state of its promises.

    Attributes
    ----------
    rows : int
        The greatest number of tuples to serve.
    duration_us : int
        No further chunk starts after this time, in case tuples cost more than expected.
    urgent_us : tuple of int
        For each promise: the staleness from which a key would break the promise if it waited for the next
        micro-batch.
    needs : tuple of float
        For each promise: the work of its keys divided by the work that could be done in time. If this number
        is above 1, the promise cannot hold: it needs this many times the cores, or a cost or load that is
        smaller by this factor. The number is infinite if the fixed cost of a micro-batch alone is too high.
    """

    rows: int
    duration_us: int
    urgent_us: tuple[int, ...]
    needs: tuple[float, ...]


def allowed_budgets(limit_us: float, fixed_us: float, work_us: float) -> tuple[float, float] | None:
    """Return the least and greatest budget that keep staleness within a limit; None if no budget does."""
    fits = 2 * (fixed_us + work_us) <= limit_us
    if not fits and (work_us < fixed_us or limit_us < (math.sqrt(fixed_us) + math.sqrt(work_us)) ** 2):
        return None
    # With B below U: B**2 - (limit - F - U) B + F U <= 0.
    half = (limit_us - fixed_us - work_us) / 2
    root = math.sqrt(max(half * half - fixed_us * work_us, 0.0))
    return half - root, limit_us / 2 - fixed_us if fits else half + root


def greatest_work(limit_us: float, fixed_us: float) -> float:
    """Return the greatest work for which a budget is allowed."""
    if limit_us >= 4 * fixed_us:
        return (math.sqrt(limit_us) - math.sqrt(fixed_us)) ** 2
    return max(limit_us / 2 - fixed_us, 0.0)


def _choose_budget(limits: Sequence[float], fixed_us: float, works: Sequence[float]) -> float:
    """Return the budget for promises with these limits and amounts of work, ordered by importance."""
    low, high = 0.0, math.inf
    for limit_us, work_us in zip(limits, works, strict=True):
        allowed = allowed_budgets(limit_us, fixed_us, work_us)
        least, greatest = allowed or (0.0, 0.0)
        if allowed is None or greatest < low or least > high:
            best = (
                math.sqrt(fixed_us * work_us) if allowed is None else (greatest if greatest < low else least)
            )
            return min(max(best, low), high)
        low, high = max(low, least), min(high, greatest)
    return high


def plan(
    contract: FreshnessContract,
    state: ControllerState,
    waiting: Sequence[int],
    started_us: int,
    since_us: int | None = None,
) -> tuple[ControllerState, Decision]:
    """Decide how much a micro-batch serves, after its tuples are in the queue.

    Parameters
    ----------
    waiting : sequence of int
        The number of waiting keys by promise.
    started_us : int
        The start of the micro-batch.
    since_us : int, optional
        The arrival time of the oldest tuple that entered now. If this time is after the end of the last
        micro-batch, the process may have been idle in between.
    """
    fit, doubted = state.fit, state.doubted
    cycle_us = started_us - state.started_us
    longest_us = max(promise.limit_us for promise in contract.promises)
    dearest_us = trial_us = rest_us = 0.0
    if state.started_us and cycle_us > 0:
        waited = state.left > 0 or (since_us is not None and since_us <= state.finished_us)
        busy = waited and cycle_us > _LONGEST_PACED * state.interval_us
        if busy:
            rest_us = float(started_us - state.finished_us)
        if busy or (waited and not fit.cycle_us) or cycle_us < fit.expect(state.served):
            expected_us = fit.expect(state.served)
            usual_us = max(expected_us, fit.cycle_us) if fit.cycle_us else longest_us
            if doubted is None and cycle_us > _LONGEST_JUMP * usual_us:
                doubted = fit.add(state.served, cycle_us, longest_us)
                dearest_us = min(cycle_us, _LONGEST_JUMP * longest_us) / max(state.served, 1)
                trial_us = _MIN_SURPRISING_RATIO * usual_us
            else:
                if doubted is not None and cycle_us > _MIN_SURPRISING_RATIO * usual_us:
                    fit = replace(doubted, row_us=fit.row_us)
                fit, doubted = fit.add(state.served, cycle_us, longest_us), None
    known = state.classes or (ClassState(),) * len(contract.promises)
    weight = _WAITING_WEIGHT if state.started_us else 1.0
    classes = tuple(
        replace(one, waiting=one.waiting + weight * (count - one.waiting))
        for one, count in zip(known, waiting, strict=True)
    )
    works, total = [], 0.0
    for one in classes:
        total += one.waiting * fit.cost_us
        works.append(total)
    limits = [MARGIN * promise.limit_us for promise in contract.promises]
    target_us = max(_choose_budget(limits, fit.fixed_us, works), fit.cost_us)
    budget_us = state.budget_us
    if budget_us == 0.0:
        budget_us = target_us / 2
    elif abs(target_us - budget_us) > _MIN_CHANGE * budget_us:
        budget_us += (target_us - budget_us) / 2
    needs = []
    for limit_us, work_us in zip(limits, works, strict=True):
        most_us = greatest_work(limit_us, fit.fixed_us)
        needs.append(work_us / most_us if most_us > 0.0 else math.inf)
    most = max(_FIRST_ROWS, int(_ROWS_GROWTH * state.reached))
    rows = int(budget_us / fit.cost_us)
    if dearest_us:  # serve so few rows that the cycle has the usual length even if rows are this expensive
        rows = min(rows, math.ceil(max(budget_us, trial_us) / dearest_us))
    rows = max(min(rows, most), 1)
    if state.left and max(needs) > 1.0 and doubted is None and not fit.is_certain:
        rows = max(rows, math.ceil(_TRIAL_GROWTH * fit.rows))
    now = replace(
        state,
        fit=fit,
        classes=classes,
        budget_us=budget_us,
        limit=rows,
        started_us=started_us,
        doubted=doubted,
        rest_us=rest_us,
    )
    urgent = (int(limit_us - 2 * now.cycle_us) for limit_us in limits)
    return now, Decision(rows, max(int(2 * budget_us), 1), tuple(urgent), tuple(needs))


def update_controller(
    contract: FreshnessContract,
    state: ControllerState,
    staleness: Sequence[Staleness],
    finished_us: int,
    *,
    served: int,
    left: int,
    serving_us: int,
) -> ControllerState:
    """Return the state after a micro-batch.

    Parameters
    ----------
    staleness : sequence of Staleness
        The staleness by promise since the last call. A result is seen only after its micro-batch is
        committed. So the rest of the cycle is added before the staleness is compared with the limit.
    served, left : int
        The numbers of tuples served, and still waiting.
    serving_us : int
        The time that serving took.
    """
    fit, classes = state.fit, []
    if served:
        sample = serving_us / served
        known = min(
            fit.row_us or sample, _LONGEST_JUMP * sample
        )  # an earlier cycle may have compiled kernels
        row_us = known + _CYCLE_WEIGHT * (min(sample, _LONGEST_JUMP * known) - known)
        fit = replace(fit, row_us=max(row_us, 1e-3))
    # Expect the same time as in the last cycle, because a fit learns only a part of each cycle.
    known_us = state.rest_us * min(served / max(state.served, 1), 1.0)
    began_us = state.finished_us or state.started_us
    rest_us = max(known_us, fit.expect(served) - (finished_us - state.started_us), fit.fixed_us)
    for promise, one, part in zip(contract.promises, state.classes, staleness, strict=True):
        late_us = part.time_above(max(promise.limit_us - rest_us, 0.0))
        now = one.add(promise, Stretch(began_us, finished_us, late_us, part.key_time))
        allowed = (1.0 - contract.share) * now.time_us / (2.0 if one.broken else 1.0)
        classes.append(replace(now, broken=now.late_us > allowed))
    after = replace(state, fit=fit)
    interval_us = int(_INTERVAL_SHARE_OF_CYCLE * after.cycle_us)
    if abs(interval_us - state.interval_us) <= _MIN_CHANGE * state.interval_us:
        interval_us = state.interval_us
    interval_us = min(interval_us, int(LONGEST_INTERVAL * contract.tightest_us))
    return replace(
        after,
        classes=tuple(classes),
        interval_us=0 if left else interval_us,
        reached=max(float(served), _ROWS_DECAY * state.reached),
        finished_us=finished_us,
        served=served,
        left=left,
    )
