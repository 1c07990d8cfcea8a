"""Avoid imports in a process that should deliver its first row soon."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["skip_pandas"]


def skip_pandas() -> None:
    """Let pyarrow make arrays without importing pandas, because the import takes a third of a second.

    Call this only in a process that runs no user code, because pyarrow then treats pandas objects like any
    other sequence. A conversion to or from pandas still imports pandas.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    hides = _Hide()
    sys.meta_path.insert(0, hides)
    try:
        pa.scalar(0)  # pyarrow looks for pandas, and remembers that there is none
    finally:
        sys.meta_path.remove(hides)


class _Hide(MetaPathFinder):
    """A finder that hides pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise an error for pandas; leave other modules to other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None
