"""A process keeps free memory for the next task."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_RESIDENT = """
import sys
from penstock.spark_ext.memory import give_back, keep_freed
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
print(kept, pa.default_memory_pool().backend_name, resident() - before, end=" ")
# What is in use stands between what is free, at the end, too.
rows, used = [], []
for _ in range(20):
    rows.append(np.ones(6 << 20))
    used.append(np.ones(2 << 20))
rows.clear()
print(resident() - before, end=" ")
if kept:
    give_back(512 << 20)
print(resident() - before)
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
    kept, pool, more, *_ = _run("keep")
    assert (kept, pool) == ("True", "system")
    assert 100 < int(more) < 190, "128 MB, in which the other 64 MB find room"


@glibc
def test_what_is_more_than_is_kept_is_given_back_also_between_what_is_in_use() -> None:
    *_, after, given = _run("keep")
    assert int(after) > 1000
    assert 300 < int(given) < 900, "320 MB are in use"


@glibc
def test_ordinarily_it_is_not() -> None:
    _, _, more, *_ = _run("leave")
    assert int(more) < 100


@glibc
def test_what_the_environment_says_of_malloc_counts() -> None:
    for said in ({"MALLOC_TRIM_THRESHOLD_": "0"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=65536"}):
        assert _run("keep", **said)[0] == "False"
    # YARN sets this one for all its containers.
    assert _run("keep", MALLOC_ARENA_MAX="4")[0] == "True"
    assert _run("keep", ARROW_DEFAULT_MEMORY_POOL="mimalloc")[:2] == ["True", "mimalloc"]
