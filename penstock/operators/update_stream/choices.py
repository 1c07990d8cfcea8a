"""Enumerations of operator options: semantics and window modes.

This module imports no kernels, so plans can import it.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Semantics", "WindowMode"]


class Semantics(StrEnum):
    """Treatment of a key's waiting tuple when a newer tuple arrives.

    UPDATE
        The newer tuple replaces the waiting tuple.
    APPEND
        Both tuples are served.
    ADAPTIVE
        The queue works as with APPEND while it keeps up, and as with UPDATE under overload.
    """

    UPDATE = "update"
    APPEND = "append"
    ADAPTIVE = "adaptive"


class WindowMode(StrEnum):
    """The windows of a key that are computed.

    LAZY
        At each service, the newest complete window (UpStream §6.2.1).
    EAGER
        At each service, the window that started last; it is computed as its tuples arrive (UpStream §6.2.2).
    APPEND
        All windows; no window queue is needed.
    """

    LAZY = "lazy"
    EAGER = "eager"
    APPEND = "append"
