"""Refuse unknown keyword arguments with an error that names the closest known name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from penstock.errors import InvalidUsageError, did_you_mean

__all__ = ["check_keywords"]

Target = TypeVar("Target", bound=Callable[..., Any])


def check_keywords(target: Target) -> Target:
    """Make a function or the public methods of a class refuse unknown keyword arguments.

    A call with an unknown keyword raises an `InvalidUsageError` instead of Python's ``TypeError``, even if
    arguments are missing, too. For ``**options: Unpack[SomeTypedDict]`` the keys of the `TypedDict` are also
    known. A function with any other ``**`` parameter takes all keywords and stays unchanged.

    A check takes less than a microsecond for each call. Do not decorate what runs for each row.

    Parameters
    ----------
    target : callable
        A function, or a class. Of a class, its own ``__init__`` and its own public methods are decorated.
    """
    if not isinstance(target, type):
        return _check(target)
    for name, member in list(vars(target).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(target, name, type(member)(_check(member.__func__)))
        elif isinstance(member, FunctionType):
            setattr(target, name, _check(member))
    return target


def _check(function: Any) -> Any:
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[code.co_posonlyargcount : count]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        rest = code.co_varnames[count + bool(code.co_flags & inspect.CO_VARARGS)]
        annotation = function.__annotations__[rest]
        if not annotation.startswith("Unpack["):
            return function
        names += tuple(function.__globals__[annotation[len("Unpack[") : -1]].__annotations__)
    known = frozenset(names)

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        if not keywords.keys() <= known:
            raise _unknown_error(function, [name for name in names if name not in ("self", "cls")], keywords)
        return function(*args, **keywords)

    return checked


def _unknown_error(function: Any, known: list[str], given: dict[str, Any]) -> InvalidUsageError:
    return InvalidUsageError(
        "there is no such option",
        hint=did_you_mean(next(name for name in given if name not in known), known, "options"),
        option=", ".join(name for name in given if name not in known),
        function=function.__qualname__.removesuffix(".__init__").rpartition(".")[2],
    )
