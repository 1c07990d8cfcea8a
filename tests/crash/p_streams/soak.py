"""Check that the disk use of a chain of p-streams stays bounded: a table and an exit code.

Usage: ``script/soak [MINUTES]``; ``script/soak --contract --help`` tells of the soak of a freshness contract.

A process appends, a query passes rows on to a second p-stream, and a reader follows that one; each releases
what it has done.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from penstock.checkpointing.p_stream import PStream, PStreamReader
from tests.crash.p_streams.p_stream_kills import Chain
from tests.servers.processes import until

_SAMPLES = 60
_SLACK = 1.25
"""The greatest ratio of the second half's peak to the first half's: releases come in bulk."""


def size_of(directory: Path) -> tuple[int, int]:
    """Return how many files there are below a directory, and their bytes."""
    sizes = []
    for path in directory.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return len(sizes), sum(sizes)


def main() -> int:
    """Run for some minutes; return 0 if disk use has returned to its bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("minutes", type=float, nargs="?", default=10.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="soak-") as name, Chain(Path(name)) as chain:
        directory = Path(name)
        sink = directory / "sink"
        if not until(lambda: chain.committed() > 0, 300):
            print("the query has committed nothing")
            return 1
        reader = PStreamReader(sink, reader="soak")
        begin, rows, peaks = time.monotonic(), 0, [[0, 0], [0, 0]]
        print(
            f"{'s':>6} {'rows in':>10} {'rows out':>10} {'source: files, KiB':>20} {'sink: files, KiB':>20}"
        )
        for sample in range(1, _SAMPLES + 1):
            due = begin + sample * minutes * 60 / _SAMPLES
            time.sleep(max(0.0, due - time.monotonic()))  # the pace of samples; nothing is waited for
            chain.check()
            rows += reader.read().num_rows
            reader.release()
            source = PStream(directory / "source")
            used = size_of(directory / "source"), size_of(sink)
            half = peaks[sample > _SAMPLES // 2]
            for part, (_, size) in enumerate(used):
                half[part] = max(half[part], size)
            texts = [f"{files}, {size / 1024:.0f}" for files, size in used]
            print(
                f"{time.monotonic() - begin:6.0f} {source.end:10} {rows:10} {texts[0]:>20} {texts[1]:>20}",
                flush=True,
            )
        chain.finish()
    first, second = peaks
    print(f"peaks in KiB, source and sink: {[p // 1024 for p in first]}, then {[p // 1024 for p in second]}")
    bounded = all(late <= early * _SLACK for early, late in zip(first, second, strict=True))
    print("disk use is bounded" if bounded else "disk use GROWS")
    return 0 if bounded else 1


if __name__ == "__main__":
    sys.exit(main())
