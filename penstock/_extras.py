"""Optional libraries, installed by ``penstock[plot]`` and ``penstock[sketch]``."""

from __future__ import annotations

import importlib.util
from typing import Final, Literal

from penstock.errors import InvalidUsageError

__all__ = ["need_extra"]

Extra = Literal["plot", "sketch"]

_MODULES: Final[dict[Extra, str]] = {"plot": "matplotlib", "sketch": "datasketches"}


def need_extra(extra: Extra, purpose: str) -> None:
    """Check that an optional dependency is installed, before the work that needs it begins.

    Parameters
    ----------
    extra : {"plot", "sketch"}
        Its name in ``pyproject.toml``.
    purpose : str
        The feature that needs it, for the message.

    Raises
    ------
    InvalidUsageError
        If it is not installed.
    """
    module = _MODULES[extra]
    if importlib.util.find_spec(module) is None:
        raise InvalidUsageError(
            f"{purpose} needs {module}, which is not installed",
            hint=f"pip install 'penstock[{extra}]', or pip install {module}",
        )
