"""Import the names of a package on first use, and objects that a text names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["import_named", "lazily"]


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
        fact = f"module {package!r} has no attribute {name!r}"
        if name.startswith("_"):  # Python asks for such names
            raise AttributeError(fact)
        from penstock.errors import did_you_mean  # `import penstock` is quick

        raise AttributeError(f"{fact}. Hint: {did_you_mean(name, modules, 'names')}")

    return attribute


def import_named(reference: str) -> Any:
    """Import the object that a text names as ``module:path``.

    Raises
    ------
    ImportError, AttributeError
        If there is no such module, or it has no such attribute.
    """
    module, _, path = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
