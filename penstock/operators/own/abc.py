"""The base class of user-defined operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from penstock._lazy import import_named
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from penstock._clock import Clock

__all__ = ["Operator", "load_operator", "name_of_operator", "output_schema"]


class Operator(ABC):
    """A user-defined operator with state: subclass it and pass an instance to `penstock.apply`.

    Penstock makes a copy of the object for each bucket; all rows of a key are in one bucket. In a worker,
    Penstock calls `restore` with the bucket's newest committed tables, if there are any. Then, in each
    micro-batch, Penstock calls `run` with the rows that arrived, and then `snapshot`. The tables are stored
    with the micro-batch. If a micro-batch runs again, it starts from the same tables, and only one of its
    runs takes effect. A bucket without rows does not run, unless `waiting` was above 0.

    `run` must give the same results for the same tables, rows and times. Everything it remembers must be in
    the tables, because the next micro-batch may run in another process.

    Attributes
    ----------
    output : str
        The columns of the results, as DDL: ``"user STRING, visits BIGINT"``. You can add columns at a
        restart, except in a graph. The class's name is fixed for the life of a checkpoint.
    uses_clock : bool
        Whether `run` may ask for the time. Penstock records the times before anyone sees results, so a
        micro-batch that runs again gets the same times. The record costs a small file for each bucket and
        micro-batch.

    Examples
    --------
    >>> import pyarrow as pa
    >>> class Visits(Operator):
    ...     output = "user STRING, visits BIGINT"
    ...
    ...     def __init__(self):
    ...         self.counts = {}
    ...
    ...     def restore(self, tables):
    ...         self.counts = dict(zip(*tables["counts"].to_pydict().values()))
    ...
    ...     def run(self, batch, clock):
    ...         visits = []
    ...         for user in batch["user"].to_pylist():
    ...             self.counts[user] = self.counts.get(user, 0) + 1
    ...             visits.append(self.counts[user])
    ...         return pa.table({"user": batch["user"], "visits": visits})
    ...
    ...     def snapshot(self):
    ...         return {"counts": pa.table({"user": list(self.counts), "visits": list(self.counts.values())})}
    >>> visits = Visits()
    >>> visits.run(pa.table({"user": ["a", "a"]}), None)["visits"].to_pylist()
    [1, 2]
    """

    output: str
    uses_clock: ClassVar[bool] = False

    @abstractmethod
    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Restore the tables of an earlier `snapshot`; the operator may keep these immutable tables."""

    @abstractmethod
    def run(self, batch: pa.Table, clock: Clock) -> pa.Table:
        """Process the rows of a micro-batch and return results.

        Parameters
        ----------
        batch : pyarrow.Table
            The rows of the bucket, in order of `time` if `penstock.apply` was given one, otherwise in order
            of arrival. The batch has no rows if the bucket runs because keys wait.
        clock : callable
            Returns the time in microseconds since 1970. Raises an error unless `uses_clock`.

        Returns
        -------
        pyarrow.Table
            The results, with the columns of `output`.
        """

    @abstractmethod
    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the state as tables by name.

        Penstock calls this method after each `run`. A table that has changed since the last snapshot is
        written whole; an unchanged table is not written.
        """

    def waiting(self) -> int:
        """Return the number of keys that need the next micro-batch even if no row arrives.

        Keys may wait for a timeout, for example. Override this method only if keys can wait: once it is
        overridden, Spark also triggers without input.
        """
        return 0

    @property
    def may_wait(self) -> bool:
        """Return whether `waiting` is overridden."""
        return type(self).waiting is not Operator.waiting


def name_of_operator(operator: Operator) -> str:
    """Return the name of an operator's class. The operator's checkpoint stores this name."""
    kind = type(operator)
    return kind.__qualname__ if kind.__module__ == "__main__" else f"{kind.__module__}:{kind.__qualname__}"


def load_operator(reference: str, arguments: Mapping[str, Any]) -> Operator:
    """Make the operator that a text names as ``module:Class``.

    Parameters
    ----------
    reference : str
        The class.
    arguments : mapping
        The keyword arguments of the class.

    Raises
    ------
    InvalidUsageError
        If there is no such operator, or it refuses the arguments.
    """
    hint = "the module must be installed, beside the pipeline's file, or on PYTHONPATH"
    try:
        found = import_named(reference)
    except (ImportError, AttributeError) as error:
        raise InvalidUsageError(
            f"the operator cannot be imported: {error}", name=reference, hint=hint
        ) from error
    if not (isinstance(found, type) and issubclass(found, Operator)):
        raise InvalidUsageError("this is no operator", name=reference, hint="subclass penstock.Operator")
    try:
        return found(**arguments)
    except InvalidUsageError:
        raise
    except Exception as error:  # users' code raises anything
        raise InvalidUsageError(
            f"the operator cannot be made: {error}", name=reference, error=type(error).__name__
        ) from error


def output_schema(operator: Operator) -> pa.Schema:
    """Return the columns of an operator's results.

    Raises
    ------
    InvalidUsageError
        If this is not an operator, or its `output` is not DDL.
    """
    if not isinstance(operator, Operator):
        raise InvalidUsageError(
            "this is no operator", got=type(operator).__name__, hint="pass an instance of a penstock.Operator"
        )
    output = getattr(operator, "output", None)
    if not isinstance(output, str):
        raise InvalidUsageError(
            "the operator has no output",
            operator=name_of_operator(operator),
            hint='write its columns as DDL: output = "user STRING, visits BIGINT"',
        )
    return parse_schema(output)
