"""Files that bypass the page cache: straight from and into the memory of a process (``O_DIRECT`` of Linux).

As open(2) has it, a process is not to fork while another of its threads reads in this way.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["open_file", "read", "write", "write_all"]

_ALIGNED = 4096
"""Places in memory and in files are multiples of this. Disks of larger blocks are refused by the system."""
_AT_ONCE = 4 << 20

_of_thread = threading.local()


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Return the descriptor of a file that is opened for direct I/O.

    Raises
    ------
    OSError
        If the file system refuses; `errno.EINVAL` where it, or the system, has no direct I/O.
    """
    direct: int = getattr(os, "O_DIRECT", 0)
    if not direct:
        raise OSError(errno.EINVAL, "the system has no direct I/O")
    return os.open(path, flags | direct, mode)


def write_all(descriptor: int, content: memoryview) -> None:
    """Write all of `content` to an open file."""
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written:])


def write(descriptor: int, content: Iterable[memoryview]) -> None:
    """Write pieces of bytes, one after the other, to an empty file that `open_file` opened.

    Raises
    ------
    OSError
        If the file system refuses.
    """
    buffer = _buffer()
    size = filled = 0
    for piece in content:
        size += len(piece)
        at = 0
        while at < len(piece):
            taken = min(len(piece) - at, _AT_ONCE - filled)
            buffer[filled : filled + taken] = piece[at : at + taken]
            at, filled = at + taken, filled + taken
            if filled == _AT_ONCE:
                write_all(descriptor, buffer)
                filled = 0
    if filled:
        padding = -filled % _ALIGNED
        buffer[filled : filled + padding] = bytes(padding)
        write_all(descriptor, buffer[: filled + padding])
        os.ftruncate(descriptor, size)


def _buffer() -> memoryview[Any]:
    """Return this thread's room."""
    if not hasattr(_of_thread, "buffer"):
        _of_thread.buffer = memoryview(mmap.mmap(-1, _AT_ONCE))
    buffer: memoryview[Any] = _of_thread.buffer
    return buffer


def _forget_buffer() -> None:
    """Let a process that was forked have room of its own: the other one's is shared."""
    _of_thread.__dict__.clear()


os.register_at_fork(after_in_child=_forget_buffer)


def read(path: Path, at: int, size: int) -> memoryview[Any]:
    """Return `size` bytes of a file from `at` on, fewer where it ends before, all if it is negative.

    Raises
    ------
    OSError
        If the file system refuses.
    """
    descriptor = open_file(path, os.O_RDONLY)
    try:
        there = max(0, os.fstat(descriptor).st_size - at)
        size = there if size < 0 else min(size, there)
        if not size:
            return memoryview(b"")
        skipped = at % _ALIGNED
        room = -(-(skipped + size) // _ALIGNED) * _ALIGNED
        import numpy as np  # a quarter of the time that Penstock takes to load

        memory = np.empty(room + _ALIGNED, np.uint8)
        begin = -memory.ctypes.data % _ALIGNED
        view = memory[begin : begin + room].data
        done = 0
        while done < skipped + size:
            got = os.preadv(descriptor, [view[done:]], at - skipped + done)
            if not got:
                raise OSError(errno.EIO, "the file became shorter")
            done += got
    finally:
        os.close(descriptor)
    return view[skipped : skipped + size]
