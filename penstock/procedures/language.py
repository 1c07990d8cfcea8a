"""The words that procedures use beside Python's own. They do nothing outside of one."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.errors import InvalidUsageError

__all__ = ["abort", "event"]

_HINT = "call it in a procedure, which a database runs"


def abort(why: str) -> NoReturn:
    """Undo the transaction and reject it; `why` is what the result says.

    Parameters
    ----------
    why : str
        A literal text.
    """
    raise InvalidUsageError("abort was called outside of a procedure", hint=_HINT)


def event(**attributes: Any) -> Any:
    """Make the event that a procedure called by another one gets.

    Parameters
    ----------
    **attributes
        The attributes of the event.
    """
    raise InvalidUsageError("event was called outside of a procedure", hint=_HINT)
