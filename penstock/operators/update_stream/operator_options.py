"""Operator options as values, validated when created; shared by Python, YAML and graphs.

Column names are checked when the schema is known: when a graph is built, and when the operator is created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, TypeVar

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.freshness.contract import (
    FreshnessContract,
    check_contract,
    check_contract_of_queue,
)
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.choices import Semantics, WindowMode
from penstock.operators.update_stream.deletes import delete_conditions, parse_delete_when
from penstock.operators.update_stream.lives import Ttl, check_lives
from penstock.operators.update_stream.options import (
    Budget,
    budget_of,
    check_cost,
    cost_of,
    parse_choice,
    parse_ms,
    weight_of,
)
from penstock.state_store.bucket_store import RETAIN_VERSIONS
from penstock.state_store.tables.working_copy import WorkingCopy
from penstock.units import COST_BY_KEY, parse_duration_us

__all__ = [
    "STALENESS_COLUMN",
    "Apply",
    "JoinArguments",
    "JoinOptions",
    "QueueArguments",
    "QueueOptions",
    "StateArguments",
    "StateOptions",
    "TransactionArguments",
    "TransactionOptions",
    "UnionArguments",
    "WindowArguments",
    "WindowOptions",
    "make_options",
]

Apply = Callable[[pa.Table], pa.Table]
"""The query: from a table of newest tuples to a table of results. It may drop rows, never keys."""

STALENESS_COLUMN = "queue_staleness_ms"
"""The optional column with each tuple's queue staleness at its dequeue."""

_NULLS = ("error", "drop")
_ORDERS = ("arrival", "any")
_COMBINE = ("auto", True, False)


class StateArguments(TypedDict, total=False):
    """Keyword arguments of all operators with state; see `penstock.update_queue`."""

    buckets: int | None
    nulls: str
    state_location: str | os.PathLike[str] | None
    retain_versions: int


class UnionArguments(StateArguments, total=False):
    """Keyword arguments that `penstock.update_union` shares with `penstock.update_queue`."""

    policy: str
    budget: int | str | None
    freshness: Mapping[str, Any] | None
    apply: Apply | None
    output_schema: Any
    arrival: str | None
    cost: str | None
    weight: str | Mapping[Any, float] | None
    combine: bool | str
    staleness_column: bool
    delete_when: str | None
    ttl: Ttl | None
    delete_ttl: Ttl | None
    on_silent: str | None
    working_copy: str
    late_to: str | os.PathLike[str] | None


class QueueArguments(UnionArguments, total=False):
    """Keyword arguments of `penstock.update_queue`."""

    semantics: str


class JoinArguments(StateArguments, total=False):
    """Keyword arguments of `penstock.update_join`."""

    watermark_delay: str | timedelta | None
    delete_when: str | Mapping[str, str] | None
    ttl: Ttl | None
    on_silent: str | None
    late_to: str | os.PathLike[str] | None


class WindowArguments(TypedDict, total=False):
    """Keyword arguments of windows in graphs; see `penstock.update_window`."""

    watermark_delay: str | timedelta | None
    mode: str
    budget: int | str | None
    freshness: Mapping[str, Any] | None
    policy: str | None
    cost: str | None
    weight: str | Mapping[Any, float] | None
    delete_when: str | None
    ttl: str | timedelta | None
    on_silent: str | None
    late_to: str | os.PathLike[str] | None


class TransactionArguments(TypedDict, total=False):
    """Keyword arguments of `penstock.transactions`."""

    order: str
    buckets: int | None
    requests: str | os.PathLike[str] | None
    batch: str | int | None
    compatible_with: str | None
    state_location: str | os.PathLike[str] | None
    retain_versions: int


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """The options of all operators with state; see `penstock.update_queue`.

    Raises
    ------
    InvalidUsageError
        If a number is not positive, or a choice is unknown.
    """

    buckets: int | None = None
    nulls: str = "error"
    state_location: str | os.PathLike[str] | None = None
    retain_versions: int = RETAIN_VERSIONS

    def __post_init__(self) -> None:
        if self.nulls not in _NULLS:
            raise InvalidUsageError(
                "an option has an unknown value", option="nulls", got=self.nulls, known=_NULLS
            )
        if self.buckets is not None and not _is_positive(self.buckets):
            raise InvalidUsageError(
                "the number of buckets is not a positive integer", buckets=repr(self.buckets)
            )
        if not _is_positive(self.retain_versions):
            raise InvalidUsageError(
                "the number of retained versions is not a positive integer",
                retain_versions=repr(self.retain_versions),
            )


@dataclass(frozen=True, kw_only=True)
class QueueOptions(StateOptions):
    """The options of an update queue or union; see `penstock.update_queue`.

    Raises
    ------
    InvalidUsageError
        If an option is invalid, or options contradict each other.
    """

    policy: str = Policy.IN_PLACE
    budget: int | str | None = None
    freshness: Mapping[str, Any] | None = None
    apply: Apply | None = None
    output_schema: Any = None
    arrival: str | None = None
    cost: str | None = None
    weight: str | Mapping[Any, float] | None = None
    combine: bool | str = "auto"
    staleness_column: bool = False
    delete_when: str | None = None
    ttl: Ttl | None = None
    delete_ttl: Ttl | None = None
    on_silent: str | None = None
    semantics: str = Semantics.UPDATE
    working_copy: str = WorkingCopy.MEMORY
    late_to: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        StateOptions.__post_init__(self)
        for name, kind in (("policy", Policy), ("semantics", Semantics), ("working_copy", WorkingCopy)):
            object.__setattr__(self, name, parse_choice(name, getattr(self, name), kind))
        if self.apply is None and self.output_schema is not None:
            raise InvalidUsageError("output_schema is for the results of apply, which is missing")
        if self.apply is not None and not callable(self.apply):
            raise InvalidUsageError("apply is not callable", got=type(self.apply).__name__)
        if self.apply is not None and self.output_schema is None:
            raise InvalidUsageError("apply needs output_schema, the schema of its results")
        budget_of(self.budget, timed=self.apply is not None)
        check_cost(self.cost, self.policy, self.semantics, self.apply)
        weight_of(self.weight)
        check_contract(self.contract, self.budget)
        if self.contract is not None:
            check_contract_of_queue(self.contract, self.semantics, self.working_copy)
        if self.delete_when is not None:
            parse_delete_when(self.delete_when)
        check_lives(self, self.delete_ttl)
        if (self.ttl is not None or self.delete_ttl is not None) and self.semantics != Semantics.UPDATE:
            raise InvalidUsageError(
                "keys leave only queues of update semantics",
                option="ttl" if self.ttl is not None else "delete_ttl",
                semantics=str(self.semantics),
            )
        if self.combine not in _COMBINE:
            raise InvalidUsageError(
                "an option has an unknown value", option="combine", got=self.combine, known=list(_COMBINE)
            )
        if self.combine is True and self.semantics != Semantics.UPDATE:
            raise InvalidUsageError(
                "combine=True drops tuples that these semantics need", semantics=str(self.semantics)
            )
        if self.late_to is not None:
            self._check_late()

    def _check_late(self) -> None:
        if self.combine is True:
            raise InvalidUsageError("combine=True drops tuples that late_to needs", hint="leave out combine=")
        if self.semantics == Semantics.ADAPTIVE:
            raise InvalidUsageError(
                "an adaptive queue cannot write its late rows",
                hint="which tuples it drops depends on their order; use semantics='update', or leave out "
                "late_to=",
            )

    @property
    def limits(self) -> Budget:
        """The limits of the budget; with a contract, a time limit that the controller replaces."""
        if self.contract is not None:
            return Budget(duration_us=self.contract.tightest_us)
        return budget_of(self.budget, timed=self.apply is not None)

    @property
    def contract(self) -> FreshnessContract | None:
        """The freshness contract."""
        return None if self.freshness is None else FreshnessContract.parse(self.freshness)

    @property
    def cost_us(self) -> int | None:
        """The cost of a tuple in microseconds; None if it is measured."""
        return None if self.costs_by_key else cost_of(self.cost)

    @property
    def costs_by_key(self) -> bool:
        """Return whether the cost of each key is measured."""
        return self.cost == COST_BY_KEY

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that options name."""
        classes = () if self.contract is None else self.contract.columns
        return *(name for name in (self.arrival, self.weight) if isinstance(name, str)), *classes

    @property
    def may_conflate(self) -> bool:
        """Return whether older tuples of a key may be dropped before they reach the queue."""
        return self.combine is not False and self.semantics == Semantics.UPDATE and self.late_to is None


@dataclass(frozen=True, kw_only=True)
class JoinOptions(StateOptions):
    """The options of a join of update streams; see `penstock.update_join`."""

    watermark_delay: str | timedelta | None = None
    delete_when: str | Mapping[str, str] | None = None
    ttl: Ttl | None = None
    on_silent: str | None = None
    late_to: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Whether the delay is a whole number of steps is checked later, when the type of the time is known.
        """
        StateOptions.__post_init__(self)
        check_lives(self)
        delete_conditions(self.delete_when)
        if self.watermark_delay is not None:
            parse_duration_us(self.watermark_delay)


@dataclass(frozen=True, kw_only=True)
class WindowOptions(StateOptions):
    """The options of windows, such as the allowed lateness and the windows to emit.

    See `penstock.update_window`.

    Raises
    ------
    InvalidUsageError
        If an option is invalid, or belongs to a different mode.
    """

    watermark_delay: str | timedelta | None = None
    mode: str = WindowMode.APPEND
    budget: int | str | None = None
    freshness: Mapping[str, Any] | None = None
    policy: str | None = None
    cost: str | None = None
    weight: str | Mapping[Any, float] | None = None
    delete_when: str | None = None
    ttl: str | timedelta | None = None
    on_silent: str | None = None
    late_to: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        StateOptions.__post_init__(self)
        object.__setattr__(self, "mode", parse_choice("mode", self.mode, WindowMode))
        if self.policy is not None:
            object.__setattr__(self, "policy", parse_choice("policy", self.policy, Policy))
        if self.watermark_delay is not None:
            parse_ms("watermark_delay", self.watermark_delay, least=0)
        for option in ("budget", "freshness", "policy", "cost", "weight", "ttl"):
            if getattr(self, option) is not None and not self.by_key:
                raise InvalidUsageError(
                    "windows in append mode do not take this option",
                    option=option,
                    hint="use mode='lazy' or mode='eager', which serve key by key",
                )
        budget_of(self.budget, timed=True)
        cost_of(self.cost)
        weight_of(self.weight)
        check_contract(self.contract, self.budget, classes=False)
        check_lives(self)
        if self.ttl is not None:
            parse_ms("ttl", self.ttl)
        if self.delete_when is not None:
            parse_delete_when(self.delete_when)
            if self.on_silent is not None:
                raise InvalidUsageError("windows with deletes have no silent rows", on_silent=self.on_silent)
            if isinstance(self.weight, str):
                raise InvalidUsageError(
                    "a delete has no weight, so the weight of windows with deletes cannot be a column",
                    weight=self.weight,
                    hint="pass a mapping of keys to weights",
                )

    @property
    def by_key(self) -> bool:
        """Return whether only each key's most recent window is emitted, in policy order."""
        return self.mode != WindowMode.APPEND

    @property
    def order(self) -> Policy:
        """The policy, or its default."""
        return Policy.IN_PLACE if self.policy is None else Policy(self.policy)

    @property
    def limits(self) -> Budget:
        """The limits of the budget; with a contract, a time limit that the controller replaces."""
        if self.contract is not None:
            return Budget(duration_us=self.contract.tightest_us)
        return budget_of(self.budget, timed=True)

    @property
    def contract(self) -> FreshnessContract | None:
        """The freshness contract."""
        return None if self.freshness is None else FreshnessContract.parse(self.freshness)

    @property
    def cost_us(self) -> int | None:
        """The cost of a window in microseconds; None if it is measured."""
        return cost_of(self.cost)

    @property
    def delay_ms(self) -> int | None:
        """The watermark delay in milliseconds; None if not given."""
        if self.watermark_delay is None:
            return None
        return parse_ms("watermark_delay", self.watermark_delay, least=0)


@dataclass(frozen=True, kw_only=True)
class TransactionOptions(StateOptions):
    """The options of transactions; see `penstock.transactions`."""

    order: str = "arrival"
    requests: str | os.PathLike[str] | None = None
    batch: str | int | None = None
    compatible_with: str | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        StateOptions.__post_init__(self)
        if self.order not in _ORDERS:
            raise InvalidUsageError(
                "an option has an unknown value", option="order", got=self.order, known=_ORDERS
            )
        if not (self.batch is None or isinstance(self.batch, str) or _is_positive(self.batch)):
            raise InvalidUsageError(
                "a batch is neither a column nor a number of events", batch=repr(self.batch)
            )


OptionsT = TypeVar("OptionsT", bound=StateOptions)


def make_options(kind: type[OptionsT], arguments: Mapping[str, Any], **context: str) -> OptionsT:
    """Create options from keyword arguments; errors name the context.

    Parameters
    ----------
    kind : type
        `QueueOptions`, `JoinOptions` or `WindowOptions`.
    arguments : mapping
        The arguments. Their names are known.

    Raises
    ------
    InvalidUsageError
        If an argument is invalid.
    """
    try:
        return kind(**arguments)
    except InvalidUsageError as error:
        raise InvalidUsageError(error.fact, hint=error.hint, **error.context, **context) from error


def _is_positive(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0
