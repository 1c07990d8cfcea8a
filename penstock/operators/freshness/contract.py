"""Freshness contracts: how stale results may be, by class of key.

This module imports no kernels, so plans can import it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.choices import Semantics
from penstock.sql.expression import Expression
from penstock.state_store.tables.working_copy import WorkingCopy
from penstock.units import parse_duration_us

__all__ = [
    "ALL_KEYS",
    "OTHER",
    "FreshnessContract",
    "Promise",
    "check_contract",
    "check_contract_of_queue",
]

ALL_KEYS = "all"
"""The name of the only class of a contract without classes."""

OTHER = "other"
"""The class of keys that belong to no other class."""

_BY = "by"
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
_MIN_US = 1_000
_EXAMPLE = 'write {"p95": "2 s"}, or with classes {"p95": {"gold": "500 ms", "other": "5 s"}, "by": "tier"}'


@dataclass(frozen=True, slots=True)
class Promise:
    """The longest staleness that a contract allows for a class of keys.

    Attributes
    ----------
    name : str
        The class.
    limit_us : int
        The staleness in microseconds.
    """

    name: str
    limit_us: int


@dataclass(frozen=True, slots=True)
class FreshnessContract:
    """A promised percentile of staleness over time and keys, for all keys or by class of key.

    Attributes
    ----------
    share : float
        The share of time and keys within the limit: 0.95 for ``p95``.
    promises : tuple of Promise
        The classes, from the most to the least important class.
    by : str or None
        The column, or SQL expression, with the class of a key; None if there are no classes. Keys outside of
        all classes have no promise and are the least important. If a class is named `OTHER`, they belong to
        this class.
    """

    share: float
    promises: tuple[Promise, ...]
    by: str | None = None

    @staticmethod
    def parse(value: object) -> FreshnessContract:
        """Convert a user's contract.

        Raises
        ------
        InvalidUsageError
            If the contract does not have the form that the hint of the error shows.
        """
        if not isinstance(value, Mapping):
            raise _wrong("the contract of freshness is not a mapping", got=type(value).__name__)
        percentiles = [name for name in value if name != _BY]
        found = _PERCENTILE.fullmatch(str(percentiles[0])) if len(percentiles) == 1 else None
        if found is None or float(found[1]) == 0:
            raise _wrong(
                "a contract of freshness has exactly one percentile", got=[str(name) for name in percentiles]
            )
        by, limits = value.get(_BY), value[percentiles[0]]
        if isinstance(limits, Mapping) != (by is not None):
            raise _wrong("classes of keys need both limits and a column", by=by)
        if by is not None:
            _check_by(by)
        if not isinstance(limits, Mapping):
            limits = {ALL_KEYS: limits}
        if not limits:
            raise _wrong("a contract of freshness has no class", by=by)
        promises = tuple(Promise(str(name), _limit(str(name), limit)) for name, limit in limits.items())
        names = [promise.name for promise in promises]
        if by is not None and ALL_KEYS in names:
            raise _wrong("a class has the name that stands for all keys together", classes=names)
        if OTHER in names[:-1]:
            raise _wrong("the class of all other keys is not the last class", classes=names)
        return FreshnessContract(float(found[1]) / 100, promises, by)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number; empty without classes.

        The last name is always `OTHER`.
        """
        if self.by is None:
            return ()
        names = tuple(promise.name for promise in self.promises)
        return names if names[-1] == OTHER else (*names, OTHER)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the class of a key depends on."""
        return () if self.by is None else Expression.parse(self.by).columns

    @property
    def tightest_us(self) -> int:
        """The shortest limit of any promise, in microseconds."""
        return min(promise.limit_us for promise in self.promises)

    @property
    def percentile(self) -> str:
        """The promised percentile, such as ``p95``."""
        return f"p{self.share * 100:g}"

    def describe(self) -> str:
        """Return the contract as text, for plans."""
        limits = ", ".join(
            (f"{one.name} " if self.by is not None else "") + _show(one.limit_us) for one in self.promises
        )
        return f"{self.percentile} fresh within {limits}" + (f" by {self.by}" if self.by else "")


def check_contract(
    contract: FreshnessContract | None, budget: int | str | None, *, classes: bool = True
) -> None:
    """Check that a contract, if there is one, fits the other options of an operator.

    Raises
    ------
    InvalidUsageError
        If there is also a budget, or if the contract has classes and the operator does not support them.
    """
    if contract is None:
        return
    if budget is not None:
        raise InvalidUsageError(
            "a contract of freshness sets the budget", budget=budget, hint="leave out budget="
        )
    if contract.by is not None and not classes:
        raise InvalidUsageError(
            "windows have no classes of keys", by=contract.by, hint='write freshness={"p95": "2 s"}'
        )


def check_contract_of_queue(contract: FreshnessContract, semantics: str, working_copy: str) -> None:
    """Check that a contract fits the options of a queue.

    Raises
    ------
    InvalidUsageError
        If the queue never drops a tuple, or if the queue cannot know the classes of its keys.
    """
    if semantics == Semantics.APPEND:
        raise InvalidUsageError(
            "a queue that serves every tuple cannot promise freshness",
            semantics=semantics,
            hint="use semantics='update' or 'adaptive'",
        )
    if contract.by is not None and semantics != Semantics.UPDATE:
        raise InvalidUsageError(
            "classes of keys need update semantics",
            semantics=semantics,
            by=contract.by,
            hint="with other semantics several tuples of a key may wait, each with a class of its own; use "
            "semantics='update', or promise the same to all keys",
        )
    if contract.by is not None and working_copy != WorkingCopy.MEMORY:
        raise InvalidUsageError(
            "classes of keys need the working copy in memory", working_copy=working_copy, by=contract.by
        )


def _check_by(by: object) -> None:
    if not isinstance(by, str):
        raise _wrong("the class of a key is not an SQL expression", by=type(by).__name__)
    expression = Expression.parse(by)
    if expression.aggregate or expression.generates or not expression.deterministic:
        raise _wrong("the class of a key is not an expression on single rows", by=by)


def _limit(name: str, limit: object) -> int:
    if not isinstance(limit, str):
        raise _wrong("the staleness that a contract allows is not a duration", of=name, got=repr(limit))
    limit_us = parse_duration_us(limit)
    if limit_us < _MIN_US:
        raise _wrong("the staleness that a contract allows is too short", of=name, got=limit)
    return limit_us


def _show(limit_us: int) -> str:
    return f"{limit_us / 1e6:g} s" if limit_us >= 1_000_000 else f"{limit_us / 1e3:g} ms"


def _wrong(fact: str, **context: Any) -> InvalidUsageError:
    return InvalidUsageError(fact, option="freshness", **context, hint=_EXAMPLE)
