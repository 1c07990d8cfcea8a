"""A process that is killed: appends updates of a few keys to an update log, and compacts it meanwhile.

Usage: ``python update_log_writer.py DIRECTORY COMMITS``. Goes on from where its name's last one came to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.checkpointing.p_stream import PStreamWriter
from penstock.checkpointing.p_stream.cleanup import CleanupRule

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64(), "gone": pa.bool_()})
KEYS, ROWS = 7, 20


def updates(first: int, count: int) -> list[dict[str, Any]]:
    """Return `count` updates from number `first` on; the times are not in order."""
    return [{"k": n * 5 % KEYS, "t": n ^ 3, "gone": n % 11 == 0} for n in range(first, first + count)]


def main() -> int:
    """Run the writer and return its exit code."""
    directory, commits = Path(sys.argv[1]), int(sys.argv[2])
    cleanup = CleanupRule(min_tail_rows=3 * ROWS, min_log_entries=4)
    with PStreamWriter(
        directory / "log", SCHEMA, threads=1, key="k", time="t", delete_when="gone", cleanup=cleanup
    ) as writer:
        for at in range(writer.clock.get("n", 0), commits * ROWS, ROWS):
            writer.append(updates(at, ROWS), clock={"n": at + ROWS})
            writer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
