"""Logs on standard error, if an environment variable enables them."""

from __future__ import annotations

import logging
import sys
from typing import Final

__all__ = ["LEVEL_VARIABLE", "log_to_stderr"]

LEVEL_VARIABLE: Final = "PENSTOCK_LOG"
"""An environment variable with a level, such as ``info``. Python workers on this machine inherit it."""

_LEVELS: Final = ("debug", "info", "warning", "error")
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr(level: str) -> None:
    """Write the log ``penstock`` to standard error; called once in a process, by ``import penstock``.

    An unknown level is reported in the log and treated as ``info``, because an environment variable must not
    make imports fail.
    """
    logger = logging.getLogger("penstock")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)
    known = level.lower() in _LEVELS
    logger.setLevel(level.upper() if known else logging.INFO)
    # If records reached the program's own handlers, these would write each line again.
    logger.propagate = False
    if not known:
        logger.warning("unknown level [%s=%s levels=%s]", LEVEL_VARIABLE, level, ",".join(_LEVELS))
