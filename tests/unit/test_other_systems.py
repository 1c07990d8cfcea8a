"""Nothing that only Linux has is needed to import the library, and a p-stream works without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import penstock

_NAMES = (
    "O_DIRECT", "O_TMPFILE", "copy_file_range", "eventfd", "memfd_create", "posix_fadvise", "posix_fallocate",
    "sched_getaffinity", "sched_setaffinity", "sendfile", "splice", "pidfd_open",
)  # fmt: skip

_PROGRAM = """
import importlib, os, pkgutil, platform, sys
for name in {names}:
    if hasattr(os, name):
        delattr(os, name)
platform.libc_ver = lambda *_: ("", "")
import penstock
for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
    if not module.name.startswith("penstock.testing"):
        importlib.import_module(module.name)
import pyarrow as pa
with penstock.PStreamWriter({place!r}, pa.schema({{"n": pa.int64()}})) as writer:
    writer.append({{"n": [1, 2, 3]}})
assert penstock.PStreamReader({place!r}).read()["n"].to_pylist() == [1, 2, 3]
print("imported")
"""


def test_the_library_works_without_what_only_linux_has(tmp_path: Path) -> None:
    program = _PROGRAM.format(names=_NAMES, place=str(tmp_path / "stream"))
    root = Path(penstock.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("imported\n"), done.stderr[-2000:]
