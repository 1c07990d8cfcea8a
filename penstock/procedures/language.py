"""Functions that only procedures can use. Outside of a procedure, they raise an error."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError

__all__ = ["abort", "event", "execute"]

_HINT = "call it in a procedure, which a database runs"


@check_keywords
def abort(why: str) -> NoReturn:
    """Undo the transaction and reject it; `why` is the reason in the result.

    Parameters
    ----------
    why : str
        A literal text.
    """
    raise InvalidUsageError("abort was called outside of a procedure", hint=_HINT)


def event(**attributes: Any) -> Any:
    """Make the event for a call of another procedure.

    Parameters
    ----------
    **attributes
        The attributes of the event.
    """
    raise InvalidUsageError("event was called outside of a procedure", hint=_HINT)


@check_keywords
def execute(statement: str, *values: Any) -> Any:
    """Read or write rows of one table by an SQL statement.

    The statement becomes the equivalent access in Python; see "SQL" in docs/concepts/transactions.md.

    Parameters
    ----------
    statement : str
        A literal text: SELECT, UPDATE, INSERT or DELETE, with ``?`` for values.
    *values
        The values, in the order of the placeholders.
    """
    raise InvalidUsageError("execute was called outside of a procedure", hint=_HINT)
