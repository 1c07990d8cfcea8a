"""The choices among an operator's options: semantics and window modes; without kernels, for plans."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Semantics", "WindowMode"]


class Semantics(StrEnum):
    """What a queue does with an older tuple of a key when a newer one comes.

    UPDATE
        The newer one takes its place.
    APPEND
        Both are served.
    ADAPTIVE
        APPEND while the queue keeps up, UPDATE under overload.
    """

    UPDATE = "update"
    APPEND = "append"
    ADAPTIVE = "adaptive"


class WindowMode(StrEnum):
    """Which windows of a key are computed.

    LAZY
        The newest complete one at each service (UpStream §6.2.1).
    EAGER
        The one that started last at each service, as its tuples arrive (UpStream §6.2.2).
    APPEND
        All of them. That needs no window queue.
    """

    LAZY = "lazy"
    EAGER = "eager"
    APPEND = "append"
