"""Read and write files by direct I/O (``O_DIRECT`` of Linux), which bypasses the page cache.

According to open(2), a process must not fork while one of its threads reads in this way.
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
"""The alignment of buffers and file offsets, in bytes. It is too small for disks with larger blocks."""
_BUFFER_BYTES = 4 << 20

_thread_local = threading.local()


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file for direct I/O; return its descriptor.

    Raises
    ------
    OSError
        If the file system refuses; `errno.EINVAL` if the file system or the operating system has no direct
        I/O.
    """
    direct: int = getattr(os, "O_DIRECT", 0)
    if not direct:
        raise OSError(errno.EINVAL, "the system has no direct I/O")
    return os.open(path, flags | direct, mode)


def write_all(descriptor: int, content: memoryview) -> None:
    """Write all of `content` to an open file."""
    position = 0
    while position < len(content):
        position += os.write(descriptor, content[position:])


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
            count = min(len(piece) - at, _BUFFER_BYTES - filled)
            buffer[filled : filled + count] = piece[at : at + count]
            at, filled = at + count, filled + count
            if filled == _BUFFER_BYTES:
                write_all(descriptor, buffer)
                filled = 0
    if filled:
        padding = -filled % _ALIGNED
        buffer[filled : filled + padding] = bytes(padding)
        write_all(descriptor, buffer[: filled + padding])
        os.ftruncate(descriptor, size)


def _buffer() -> memoryview[Any]:
    """Return the write buffer of this thread."""
    if not hasattr(_thread_local, "buffer"):
        _thread_local.buffer = memoryview(mmap.mmap(-1, _BUFFER_BYTES))
    buffer: memoryview[Any] = _thread_local.buffer
    return buffer


def _forget_buffer() -> None:
    """Drop the buffer in a forked process, because the parent process writes to the same memory."""
    _thread_local.__dict__.clear()


os.register_at_fork(after_in_child=_forget_buffer)


def read(path: Path, at: int, size: int) -> memoryview[Any]:
    """Return at most `size` bytes of a file from offset `at` on; all bytes if `size` is negative.

    Raises
    ------
    OSError
        If the file system refuses.
    """
    descriptor = open_file(path, os.O_RDONLY)
    try:
        available = max(0, os.fstat(descriptor).st_size - at)
        size = available if size < 0 else min(size, available)
        if not size:
            return memoryview(b"")
        skip = at % _ALIGNED
        room = -(-(skip + size) // _ALIGNED) * _ALIGNED
        import numpy as np  # not at the top: loading it takes a quarter of Penstock's import time

        memory = np.empty(room + _ALIGNED, np.uint8)
        begin = -memory.ctypes.data % _ALIGNED
        view = memory[begin : begin + room].data
        filled = 0
        while filled < skip + size:
            count = os.preadv(descriptor, [view[filled:]], at - skip + filled)
            if not count:
                raise OSError(errno.EIO, "the file became shorter")
            filled += count
    finally:
        os.close(descriptor)
    return view[skip : skip + size]
