"""A process keeps memory that is free, for what comes next."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_RESIDENT = """
import sys
from penstock._memory import keep_freed
kept = keep_freed() if sys.argv[1] == "keep" else None
import numpy as np, os, pyarrow as pa
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
before = resident()
rows = np.ones(16 << 20)
del rows
buffer = pa.allocate_buffer(64 << 20)
np.frombuffer(buffer, np.uint8)[:] = 1
del buffer
print(kept, pa.default_memory_pool().backend_name, resident() - before)
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of glibc only")


def _run(how: str, **environment: str) -> list[str]:
    plain = {name: text for name, text in os.environ.items() if "MALLOC" not in name and "ARROW" not in name}
    done = subprocess.run(
        [sys.executable, "-c", _RESIDENT, how],
        env=plain | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@glibc
def test_what_is_free_is_kept_and_used_again() -> None:
    kept, pool, more = _run("keep")
    assert (kept, pool) == ("True", "system")
    assert 100 < int(more) < 190, "128 MB, in which the other 64 MB find room"


@glibc
def test_ordinarily_it_is_not() -> None:
    _, _, more = _run("leave")
    assert int(more) < 100


@glibc
def test_what_the_environment_says_of_malloc_counts() -> None:
    kept, _, _ = _run("keep", MALLOC_TRIM_THRESHOLD_="0")
    assert kept == "False"
    _, pool, _ = _run("keep", ARROW_DEFAULT_MEMORY_POOL="mimalloc")
    assert pool == "mimalloc"
