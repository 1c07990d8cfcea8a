"""Memory that a process keeps for what comes next.

A task takes the same memory as the one before it. Ordinarily malloc returns what was large to the system once
it is free, and Arrow does so with its own; the next task then waits for the system to find and clear all of
it again, page by page. That costs up to half a second for each gigabyte, and two seconds in a virtual machine
that hands its free memory back.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from typing import Any

__all__ = ["KEPT_BYTES", "give_back", "keep_freed"]

KEPT_BYTES = 1 << 30
"""How much free memory a process keeps."""

_AT_ONCE = 16 << 20
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
"""Parameters of `mallopt`, by their numbers in ``malloc.h``."""
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")


class _Usage(ctypes.Structure):
    """What glibc's ``mallinfo2`` says, all in bytes or numbers of pieces."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    ] + [("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)]


@cache
def _glibc() -> Any:
    """Return glibc's malloc; None where it is another, an old one, or set from outside."""
    tuned = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if platform.libc_ver()[0] != "glibc" or tuned or any(name in os.environ for name in _SETTINGS):
        return None
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Usage
    libc.malloc_trim.argtypes = [ctypes.c_size_t]
    return libc


def keep_freed(kept_bytes: int = KEPT_BYTES) -> bool:
    """Let this process, and those that it forks, keep memory that is free; return whether they do.

    Only glibc's malloc (from 2.33) knows how; all threads then share one heap. Arrow takes its memory from
    malloc, too, if it has not been loaded, unless the environment names another pool for it. Where the
    environment sets malloc's thresholds, nothing is changed.

    Parameters
    ----------
    kept_bytes : int
        How much is kept at the end of the heap; what is free between pieces in use is kept until `give_back`.
    """
    libc = _glibc()
    if libc is None:
        return False
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    wanted = ((_MMAP_MAX, 0), (_ARENA_MAX, 1), (_TRIM_THRESHOLD, kept_bytes), (_TOP_PAD, _AT_ONCE))
    return all(libc.mallopt(parameter, value) for parameter, value in wanted)


def give_back(kept_bytes: int = KEPT_BYTES) -> None:
    """Give memory that is free back to the system if it is more than is kept; after `keep_freed`."""
    libc = _glibc()
    if libc is not None and libc.mallinfo2().fordblks > kept_bytes:
        libc.malloc_trim(kept_bytes)
