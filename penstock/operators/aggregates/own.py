"""User-defined aggregates: their definition, and their names in SQL text.

SQL names an aggregate by its module and class, so that every worker can import it. An example is
``own('shop:GeometricMean', price)``. If an aggregate takes several values, they are the fields of one struct,
so every aggregate has one column of values.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import ClassVar, Final

import pyarrow as pa

from penstock._lazy import import_named
from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError
from penstock.sql.syntax.functions import OWN_FUNCTION

__all__ = ["Aggregate", "find_aggregate", "parameter_names", "takes_values", "value_expression"]

_PARAMETERS: Final = {
    "init": ("state",),
    "add": ("state", "value", "..."),
    "merge": ("state", "other"),
    "finish": ("state",),
}
_MAX_WORDS: Final = 1 << 16


@check_keywords
class Aggregate:
    """A user-defined aggregate for windows: subclass it in a module, with `words` and four static methods.

    A state is an array of `words` float64 numbers. Penstock keeps a state for each pane and group, and stores
    it with the windows. Penstock compiles the methods with Numba, so the methods can use only what Numba
    supports. A method may depend only on its arguments.

    `add` has a parameter for each value: ``add(state, value)``, or ``add(state, price, volume)`` for an
    aggregate of two expressions. Rows in which any value is null are skipped. Values are float64, so whole
    numbers are exact up to 2**53. The result is a double; `finish` may return None for null.

    The order in which states are merged depends on how rows are divided into micro-batches. So `merge` must
    be commutative and associative, and merging a state made by `init` must change nothing. Results are the
    same for any order if the arithmetic is exact; otherwise they may differ in the last bits, like ``sum``
    and ``avg`` of floats.

    Attributes
    ----------
    words : int
        Number of float64 numbers in a state; fixed for the life of a checkpoint.

    Raises
    ------
    InvalidUsageError
        When a subclass is defined, if `words` or a method is missing or wrong.

    Examples
    --------
    >>> import penstock
    >>> class Range(penstock.Aggregate):
    ...     words = 2
    ...
    ...     @staticmethod
    ...     def init(state):
    ...         state[0] = float("inf")
    ...         state[1] = float("-inf")
    ...
    ...     @staticmethod
    ...     def add(state, value):
    ...         state[0] = min(state[0], value)
    ...         state[1] = max(state[1], value)
    ...
    ...     @staticmethod
    ...     def merge(state, other):
    ...         state[0] = min(state[0], other[0])
    ...         state[1] = max(state[1], other[1])
    ...
    ...     @staticmethod
    ...     def finish(state):
    ...         return state[1] - state[0]
    """

    words: ClassVar[int]

    def __init_subclass__(cls) -> None:
        """Check the definition of a subclass."""
        super().__init_subclass__()
        words = getattr(cls, "words", None)
        if not isinstance(words, int) or isinstance(words, bool) or not 1 <= words <= _MAX_WORDS:
            raise _wrong(cls, "has no size", f"write words = 2, a number from 1 to {_MAX_WORDS}")
        for name, parameters in _PARAMETERS.items():
            function = inspect.getattr_static(cls, name, None)
            call = f"@staticmethod def {name}({', '.join(parameters)})"
            several = parameters[-1] == "..."
            if function is None:
                raise _wrong(cls, f"has no {name}", f"write {call}")
            if not isinstance(function, staticmethod):
                raise _wrong(cls, f"has a {name} that is not a static method", f"write {call}")
            given = inspect.signature(function.__func__).parameters.values()
            fits = len(given) >= 2 if several else len(given) == len(parameters)
            if not fits or any(
                one.kind not in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in given
            ):
                raise _wrong(cls, f"has a {name} with other arguments", f"write {call}")

    @classmethod
    def of(cls, *expressions: str) -> str:
        """Return the SQL text of this aggregate of expressions, for the aggregates of windows.

        Parameters
        ----------
        *expressions : str
            The values, one for each parameter of `add` after the state.

        Raises
        ------
        InvalidUsageError
            If workers could not import the class, or `add` takes a different number of values.
        """
        value_expression(cls, expressions)
        return f"{OWN_FUNCTION}('{_reference(cls)}', {', '.join(expressions)})"


def _wrong(cls: type, fact: str, hint: str) -> InvalidUsageError:
    return InvalidUsageError(f"the aggregate {fact}", aggregate=cls.__qualname__, hint=hint)


def _reference(cls: type[Aggregate]) -> str:
    if cls.__module__ == "__main__" or "<" in cls.__qualname__:
        raise _wrong(cls, "cannot be imported by workers", "move it to the top level of a module")
    return f"{cls.__module__}:{cls.__qualname__}"


def find_aggregate(reference: str) -> type[Aggregate]:
    """Import the aggregate that a text names as ``module:Class``.

    Raises
    ------
    InvalidUsageError
        If there is no such aggregate in this process, which may be a cluster worker.
    """
    module, separator, path = reference.partition(":")
    hint = (
        "write own('module:Class', x); the module must be installed, beside the pipeline's file, or on "
        "PYTHONPATH, also for workers"
    )
    if not module or not separator or not path:
        raise InvalidUsageError(
            "a user-defined aggregate is not named by module and class", name=reference, hint=hint
        )
    try:
        found = import_named(reference)
    except (ImportError, AttributeError) as error:
        raise InvalidUsageError(
            "a user-defined aggregate cannot be imported", name=reference, error=str(error), hint=hint
        ) from error
    if not (isinstance(found, type) and issubclass(found, Aggregate) and found is not Aggregate):
        raise InvalidUsageError(
            "this is not a user-defined aggregate", name=reference, hint="subclass penstock.Aggregate"
        )
    return found


def parameter_names(aggregate: type[Aggregate]) -> list[str]:
    """Return the names of the values that an aggregate's `add` takes."""
    return list(inspect.signature(aggregate.add).parameters)[1:]  # type: ignore[attr-defined]  # users define it


def value_expression(
    aggregate: type[Aggregate], expressions: Sequence[str], condition: str | None = None
) -> str:
    """Return the expression for an aggregate's column of values: one expression, or a struct of several.

    Parameters
    ----------
    aggregate : type
        The aggregate.
    expressions : sequence of str
        The values.
    condition : str, optional
        A condition for the rows to aggregate. In other rows the values are null.

    Raises
    ------
    InvalidUsageError
        If `add` takes a different number of values.
    """
    names = parameter_names(aggregate)
    if len(expressions) != len(names):
        raise InvalidUsageError(
            "a user-defined aggregate is called with another number of values than its add takes",
            aggregate=aggregate.__qualname__,
            values=", ".join(expressions) or "none",
            hint=f"give it {len(names)}: {', '.join(names)}",
        )
    # Evaluating a value may fail in rows that the condition drops, so each value gets the condition.
    values = [text if condition is None else f"CASE WHEN {condition} THEN {text} END" for text in expressions]
    if len(values) == 1:
        return values[0]
    # Renamed parameters of `add` must not change the columns of a checkpoint.
    fields = ", ".join(f"'v{number}', {text}" for number, text in enumerate(values))
    return f"NAMED_STRUCT({fields})"


def takes_values(reference: str, kind: pa.DataType) -> bool:
    """Return whether an aggregate accepts a column type: numbers, or a struct with a number for each value.

    Parameters
    ----------
    reference : str
        The aggregate, as ``module:Class``.
    kind : pyarrow.DataType
        The type of the column; see `value_expression`.

    Raises
    ------
    InvalidUsageError
        If the aggregate cannot be imported.
    """
    count = len(parameter_names(find_aggregate(reference)))
    if count == 1:
        return _is_number(kind)
    is_struct = pa.types.is_struct(kind) and kind.num_fields == count
    return is_struct and all(_is_number(field.type) for field in kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))
