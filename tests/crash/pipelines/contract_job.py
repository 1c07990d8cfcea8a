"""A process that serves an update queue under a freshness contract into a slow table; see `contract_soak`.

Usage: ``python -m tests.crash.pipelines.contract_job DIRECTORY ENGINE``. It prints a line of JSON for each
micro-batch: what it delivered, and whether the promise holds. Warnings are in its log, as for any user.
SIGTERM stops it once nothing waits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.jobs.local.pipeline import Places, open_pipeline
from penstock.jobs.pipelines.run import Batch, run, run_pipeline
from penstock.local_engine.query import LocalBatch
from penstock.spark_ext.api.metrics import metrics
from tests.crash.pipelines.contract_table import PLACE, SlowTable, pipeline_in, table_in

__all__ = ["main"]

_POLL_S = 0.005


def _say(batch: int, table: SlowTable, standings: Iterable[Mapping[str, Any]]) -> None:
    standings = list(standings)
    line = {
        "batch": batch,
        "delivered": table.delivered,
        "kept": all(one["kept"] for one in standings),
        "advice": [one["advice"] for one in standings],
    }
    table.delivered = []
    print(json.dumps(line), flush=True)


def run_locally(place: Path) -> None:
    """Run on the local engine."""
    table = table_in(place)
    running = open_pipeline(pipeline_in(place), places=Places(output=lambda schema, checkpoint: table))
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))

    def say(done: LocalBatch) -> None:
        _say(done.number, table, [one.summary() for one in done.metrics.freshness.values()])

    print(json.dumps({"started": True}), flush=True)
    while running.step(say) or not stops:
        time.sleep(_POLL_S)  # polls: another process does not announce its rows


def run_on_spark(place: Path) -> None:
    """Run on Spark, and after SIGTERM once more until nothing waits."""
    table = table_in(place)
    for trigger in (None, "available_now"):
        running = run_pipeline(pipeline_in(place, "spark", trigger))

        def say(batch: Batch, running: Any = running) -> None:
            newest = [one for one in metrics(running) if one["batch_id"] == batch.number]
            _say(batch.number, table, [kept for one in newest for kept in one["classes"].values()])

        print(json.dumps({"started": True}), flush=True)
        run(running, on_batch=say)


def main(place: Path, engine: str = "local") -> None:
    """Run until SIGTERM, and then until nothing waits."""
    os.environ[PLACE] = str(place)
    (run_locally if engine == "local" else run_on_spark)(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
