"""Enumerations of operator options: semantics and window modes. Plans import them without kernels."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Semantics", "WindowMode"]


class Semantics(StrEnum):
    """Treatment of a key's waiting tuple when a newer one arrives.

    UPDATE
        The newer tuple replaces it.
    APPEND
        Both tuples are served.
    ADAPTIVE
        APPEND while the queue keeps up, UPDATE under overload.
    """

    UPDATE = "update"
    APPEND = "append"
    ADAPTIVE = "adaptive"


class WindowMode(StrEnum):
    """The windows of a key that are computed.

    LAZY
        The newest complete one at each service (UpStream §6.2.1).
    EAGER
        The one that started last at each service, as its tuples arrive (UpStream §6.2.2).
    APPEND
        All windows; no window queue is needed.
    """

    LAZY = "lazy"
    EAGER = "eager"
    APPEND = "append"
