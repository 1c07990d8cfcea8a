"""A process that is killed: appends numbers to a p-stream, and continues after the last commit of its name.

Usage: ``python p_stream_writer.py DIRECTORY``. Ends with 0 once there is a file ``finish``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

from penstock.checkpointing.p_stream import PStreamWriter

SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string()})

_ROWS = 200


def rows(first: int, count: int) -> pa.Table:
    """Return `count` rows from number `first` on."""
    numbers = range(first, first + count)
    return pa.table({"n": numbers, "text": [f"text {n}" if n % 5 else None for n in numbers]}, SCHEMA)


def main() -> int:
    """Run the writer and return its exit code."""
    directory = Path(sys.argv[1])
    with PStreamWriter(directory / "source", SCHEMA, writer="numbers", interval="50ms", threads=1) as writer:
        at = writer.clock.get("n", 0)
        print("started", flush=True)
        while True:
            writer.append(rows(at, _ROWS), clock={"n": at + _ROWS})
            at += _ROWS
            if (directory / "finish").exists():
                break
            time.sleep(0.1)  # the pace of a source; nothing is waited for
    return 0


if __name__ == "__main__":
    sys.exit(main())
