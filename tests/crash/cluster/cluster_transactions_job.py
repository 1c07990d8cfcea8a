"""A driver on a cluster, which is not killed: runs queries of `transaction_job` with some slow tasks.

Usage: ``python cluster_transactions_job.py DIRECTORY``, with the master's URL in ``PENSTOCK_MASTER``. Prints
``started`` when the queries run. Once there is a file ``finished`` and all is read, it writes the tables into
Parquet files, and ends with 0.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import penstock
from tests.crash.cluster.cluster_job import SETTINGS
from tests.crash.cluster.slow_daemon import DOUBLE_COMMITS
from tests.crash.transactions.transaction_job import START, run_flows, write_tables
from tests.spark.conftest import lean_session

FLOWS = ("votes", "spending")
"""The queries of `transaction_job`: a nested workflow in one bucket, and a procedure with requests in two."""


def main() -> int:
    """Run the job and return its exit code."""
    directory, draw = Path(sys.argv[1]), random.Random(os.environ[START])
    doubles = {f"spark__executorEnv__{DOUBLE_COMMITS}": os.environ[DOUBLE_COMMITS]}
    spark = lean_session(
        directory / "spark", master=os.environ["PENSTOCK_MASTER"], as_users=True, **SETTINGS, **doubles
    )
    penstock.register(spark)
    run_flows(spark, directory, FLOWS, draw)
    write_tables(spark, directory, FLOWS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
