"""A driver that is killed: runs the query of `workload` until nothing waits, or until it dies.

Usage: ``python job.py DIRECTORY``. Prints ``started`` when the query runs. Ends with 0 when all input
has been read and nothing waits, with 3 when the query failed (and prints why).
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from tests.crash.workload import DELETE_WHEN, query
from tests.spark.conftest import lean_session
from tests.spark.queries import Place, wait_until_drained

FAILED = 3


def main() -> int:
    """Run the job and return its exit code."""
    place = Place(Path(sys.argv[1]))
    spark = lean_session(place.directory / "spark", as_users=True)
    running = place.start(query(spark, place, delete_when=DELETE_WHEN))
    print("started", flush=True)
    try:
        wait_until_drained(running, place)
    except StreamingQueryException as error:
        print(f"failed: {error}", flush=True)
        return FAILED
    finally:
        running.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
