"""The functions that procedures use besides Python's own. They do nothing outside of a procedure."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.errors import InvalidUsageError

__all__ = ["abort", "event"]

_HINT = "call it in a procedure, which a database runs"


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
