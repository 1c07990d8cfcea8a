"""Names that are imported when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazily"]


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names come from its modules when they are used.

    So a process that needs one light module of a package does not load the heavy ones beside it.

    Parameters
    ----------
    package : str
        The package's name.
    modules : mapping of str to str
        For each name the module that has it.
    """

    def attribute(name: str) -> Any:
        if name in modules:
            return getattr(importlib.import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute
