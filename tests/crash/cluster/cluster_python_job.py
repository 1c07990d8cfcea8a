"""A driver on a cluster whose workers run another Python: prints what `penstock.register` says.

Usage: ``python cluster_python_job.py DIRECTORY``, with the master's URL in ``PENSTOCK_MASTER`` and the
daemon of the Python workers in ``PENSTOCK_TEST_DAEMON``. Ends with 1
if it was refused, else with 0.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import penstock
from penstock.errors import InvalidUsageError
from tests.spark.conftest import lean_session


def main() -> int:
    """Run the job and return its exit code."""
    spark = lean_session(
        Path(sys.argv[1]), os.environ["PENSTOCK_MASTER"], as_users=True,
        spark__driver__host="127.0.0.1", spark__executor__memory="512m",
        spark__python__daemon__module=os.environ["PENSTOCK_TEST_DAEMON"],
    )  # fmt: skip
    print("started", flush=True)
    try:
        penstock.register(spark)
    except InvalidUsageError as error:
        print(error, flush=True)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
