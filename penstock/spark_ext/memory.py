"""Keep freed memory in the process for the next task.

A task needs about as much memory as the previous task. By default malloc and Arrow return large freed blocks
to the system. Then the next task waits while the system maps and zeroes them again, page by page. This takes
up to half a second for each gigabyte, and two seconds in a virtual machine that returns its free memory to
the host.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from typing import Any

__all__ = ["KEPT_BYTES", "give_back", "keep_freed"]

KEPT_BYTES = 1 << 30
"""The free memory that a process keeps."""

_HEAP_STEP_BYTES = 16 << 20
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
"""Parameters of `mallopt`, as numbered in ``malloc.h``."""
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")


class _Usage(ctypes.Structure):
    """The result of glibc's ``mallinfo2``, in bytes or numbers of chunks."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    ] + [("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)]


@cache
def _glibc() -> Any:
    """Return glibc's malloc; None if glibc is not in use, too old, or configured by the environment."""
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
    """Let this process and its forks keep free memory; return whether they do.

    Only glibc's malloc (from 2.33) supports this; all threads then share one heap. Arrow then also allocates
    from malloc, if it was not imported before this call and the environment names no other pool. If the
    environment sets malloc's thresholds, nothing is changed.

    Parameters
    ----------
    kept_bytes : int
        How much free memory to keep at the end of the heap. Free memory between used chunks is kept until
        `give_back` is called.
    """
    libc = _glibc()
    if libc is None:
        return False
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    parameters = (
        (_MMAP_MAX, 0),
        (_ARENA_MAX, 1),
        (_TRIM_THRESHOLD, kept_bytes),
        (_TOP_PAD, _HEAP_STEP_BYTES),
    )
    return all(libc.mallopt(parameter, value) for parameter, value in parameters)


def give_back(kept_bytes: int = KEPT_BYTES) -> None:
    """Return free memory beyond the kept amount to the system; call `keep_freed` first."""
    libc = _glibc()
    if libc is not None and libc.mallinfo2().fordblks > kept_bytes:
        libc.malloc_trim(kept_bytes)
