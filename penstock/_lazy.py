"""Import the names of a package on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazily"]


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` that imports the module of a name on first use.

    A process that needs one light module of a package then does not load its heavy modules.

    Parameters
    ----------
    package : str
        The package's name.
    modules : mapping of str to str
        The module of each name.
    """

    def attribute(name: str) -> Any:
        if name in modules:
            return getattr(importlib.import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute
