"""A disk whose power can be cut: ext4 or XFS on a loop device, which loses unsynced data."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.servers.processes import until

__all__ = ["Disk", "can_mount", "disks", "file_systems"]

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
_WITHOUT_FLUSH = 2  # EXT4_GOING_FLAGS_NOLOGFLUSH, XFS_FSOP_GOING_FLAGS_NOLOGFLUSH
_MOUNT_OPTIONS = {"ext4": "loop", "xfs": "loop,nouuid"}
"""XFS refuses to mount a copy beside the original, which has the same UUID, unless told otherwise."""
_FORCE = {"ext4": "-F", "xfs": "-f"}
_SIZE_BYTES = 512 << 20
_PATIENCE_S = 5.0


class Disk:
    """A file system of type `kind` in the file `image`, mounted at `place` while the ``with`` block lasts."""

    def __init__(self, image: Path, place: Path, kind: str = "ext4") -> None:
        self.image = image
        self.place = place
        self.kind = kind

    def __enter__(self) -> Disk:
        self.place.mkdir()
        with self.image.open("wb") as file:
            file.truncate(_SIZE_BYTES)
        _run(f"mkfs.{self.kind}", "-q", _FORCE[self.kind], str(self.image))
        self._mount()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("umount", str(self.place))
        self.image.unlink()

    def _mount(self) -> None:
        _run("mount", "-t", self.kind, "-o", _MOUNT_OPTIONS[self.kind], str(self.image), str(self.place))

    def stop(self) -> None:
        """Cut the power: from here on nothing reaches the disk."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("i", _WITHOUT_FLUSH))
        finally:
            os.close(descriptor)

    def restart(self) -> None:
        """Mount it again."""
        if not until(self._is_unmounted, _PATIENCE_S):
            # A JVM that stays may have lost a file that it had open: go on with a copy of the disk.
            _run("umount", "--lazy", str(self.place))
            copy = self.image.with_suffix(".copy")
            _run("cp", "--sparse=always", str(self.image), str(copy))
            self.image.unlink()
            copy.rename(self.image)
        self._mount()

    def _is_unmounted(self) -> bool:
        return subprocess.run(("umount", str(self.place)), check=False, capture_output=True).returncode == 0


def can_mount(directory: Path) -> bool:
    """Say whether this machine and user can cut a disk's power."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4") or not shutil.which("mount"):
        return False
    try:
        with Disk(directory / "try.img", directory / "try") as disk:
            (disk.place / "file").touch()
            disk.stop()
            disk.restart()
            return not (disk.place / "file").exists()
    except (OSError, subprocess.CalledProcessError):
        return False


def file_systems() -> list[str]:
    """Return the types of file systems that this machine can make and mount."""
    known = Path("/proc/filesystems").read_text().split()
    return [kind for kind in _MOUNT_OPTIONS if kind in known and shutil.which(f"mkfs.{kind}")]


@contextlib.contextmanager
def disks(directory: Path, kinds: Sequence[str]) -> Iterator[list[Disk]]:
    """Give a disk of each type below a directory."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(Disk(directory / f"disk{n}.img", directory / f"disk{n}", kind))
            for n, kind in enumerate(kinds)
        ]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)
