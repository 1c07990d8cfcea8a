"""Memory that a process keeps for what comes next.

A task takes the same memory as the one before it. Ordinarily malloc returns what was large to the system once
it is free, and Arrow does so with its own; the next task then waits for the system to find and clear all of
it again, page by page. That costs a quarter of a second for each gigabyte, and two seconds in a virtual
machine that hands its free memory back.
"""

from __future__ import annotations

import ctypes
import os
import platform

__all__ = ["KEPT_BYTES", "keep_freed"]

KEPT_BYTES = 512 << 20
"""How much free memory a process keeps, at most, at the end of its heap."""

_AT_ONCE = 16 << 20
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""Parameters of `mallopt`, by their numbers in ``malloc.h``."""


def keep_freed(kept_bytes: int = KEPT_BYTES) -> bool:
    """Let this process, and those that it forks, keep memory that is free; return whether they do.

    Only glibc's malloc knows how. Arrow takes its memory from malloc then, if it has not been loaded, unless
    the environment names another pool for it. Where the environment sets malloc's own variables, nothing is
    changed.

    Parameters
    ----------
    kept_bytes : int
        How much, in one piece at the end of the heap.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    libc = ctypes.CDLL(None)
    wanted = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, kept_bytes), (_TOP_PAD, _AT_ONCE))
    return all(libc.mallopt(parameter, value) for parameter, value in wanted)
