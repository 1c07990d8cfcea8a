"""Transactions in Spark: from a p-stream into a p-stream, with checkpoints.

    python -m benchmarks.transactions.transactions_in_spark [--program GS SL OB TP voter] [--keys 10000]
        [--million 32]
                                               [--batch-million 8] [--route direct results rows]

Each program and route runs in a process of its own. The events are in a p-stream before the query starts.
Of the routes, ``direct`` reads events in the task of the bucket, which writes the results, ``results`` passes
results through Spark into the p-stream, and ``rows`` passes events through Spark, too. ``voter`` is the
workflow of ``examples/voter.py``: each vote is validated, counted and ranked in one transaction. Figures are
million transactions a second over the micro-batches' ``triggerExecution``, without the first ones; the
milliseconds of a micro-batch in the operator, by step; and the processor time of a transaction by kind of
process.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.harness import ProcessorProbe, machine, run_contender, scratch, session
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.procedures.programs import PROGRAMS

ROUTES = ("direct", "results", "rows")
NAMES = ("GS", "SL", "OB", "TP", "voter")
UNIT_ROWS = 1 << 16
WARM_UP = 3
"""The micro-batches that are not counted: code is compiled in them."""


@dataclass(frozen=True)
class Case:
    """A measurement that runs in a process of its own."""

    program: str
    route: str
    keys: int
    rows: int
    batch_rows: int


def votes(count: int, seed: int) -> pa.RecordBatch:
    """Return votes, of which most are the first of their phone."""
    from penstock.procedures.programs.packaged import integers

    columns = {"phone": integers(seed, count, 1 << 40), "contestant": integers(seed + 1, count, 8)}
    return pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in columns.items()})


def fill(place: Path, case: Case) -> Any:
    """Write the events into a p-stream; return the procedure or workflow, and the tables' first rows."""
    if case.program == "voter":
        from examples.voter import vote

        target: Any = vote
        first, make = [], votes
    else:
        program = PROGRAMS[case.program]
        target = program.procedure
        first = [program.opening(case.keys)]

        def make(count: int, seed: int) -> pa.RecordBatch:
            return program.workload(count, case.keys, seed)

    chunk = make(min(1 << 20, case.batch_rows), 1)
    with PStreamWriter(place, chunk.schema, unit_rows=UNIT_ROWS) as writer:
        for batch in first:
            writer.append(pa.Table.from_batches([batch]))
        for number in range(-(-case.rows // chunk.num_rows)):
            drawn = chunk if case.program != "voter" else make(chunk.num_rows, number + 1)
            writer.append(pa.Table.from_batches([drawn]))
    return target


def counted_batches(query: StreamingQuery, warm_up: int) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return Spark's progress of the micro-batches after `warm_up` ones, and Penstock's metrics of them."""
    import penstock

    progress = [one for one in query.recentProgress if one.numInputRows]
    counted = progress[min(warm_up, len(progress) - 1) :]
    metrics = {one["batch_id"]: one for one in penstock.metrics(query)}
    return counted, [metrics[one.batchId] for one in counted if one.batchId in metrics]


def mean_steps(batches: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean duration of each step of a micro-batch, in ms."""
    steps: dict[str, float] = {}
    for one in batches:
        for name, took in one["duration_ms"].items():
            steps[f"ms {name}"] = steps.get(f"ms {name}", 0.0) + took / len(batches)
    return steps


def print_case(name: str, found: dict[str, float]) -> None:
    """Print the figures of a case in a line."""
    print(name, ", ".join(f"{label} {figure:.4g}" for label, figure in found.items()), flush=True)


def measure(case: Case) -> dict[str, float]:
    """Run a query over all events."""
    import penstock

    with scratch("transactions") as folder:
        place = Path(folder)
        target = fill(place / "events", case)
        running = session()
        penstock.register(running)
        events = running.readStream.format("pstream").option("maxRows", case.batch_rows)
        df = events.load(str(place / "events"))
        given: dict[str, Any] = {"state_location": place / "state", "buckets": 1}
        if case.route == "direct":
            writer = penstock.write_transactions(df, target, place / "out", **given)
        else:
            df = df.where("true") if case.route == "rows" else df
            results = penstock.transactions(df, target, **given)
            writer = results.writeStream.format("pstream").option("path", str(place / "out"))
        writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
        with ProcessorProbe() as probe:
            query = writer.start()
            query.awaitTermination()
        counted, own = counted_batches(query, WARM_UP)
        running.stop()
    rows = sum(one["rows_in"] for one in own)
    seconds = sum(one.durationMs["triggerExecution"] for one in counted) / 1000
    begin = datetime.fromisoformat(counted[0].timestamp).timestamp()
    spent = probe.between(begin, begin + seconds)
    cpu = {f"ns {kind}": 1e9 * value / rows for kind, value in spent.items()}
    return {
        "M/s": rows / seconds / 1e6,
        "rejected": sum(one["rejected"] for one in own) / rows,
        "ms batch": 1000 * seconds / len(counted),
        "batches": len(counted),
        **{
            f"ms {name}": sum(one.durationMs.get(name, 0) for one in counted) / len(counted)
            for name in ("addBatch", "walCommit", "commitOffsets", "queryPlanning", "latestOffset")
        },
        **mean_steps(own),
        **cpu,
    }


def main() -> None:
    """Print a line for each program and route."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--program", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--route", nargs="+", choices=ROUTES, default=["direct"])
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--million", type=float, default=32)
    parser.add_argument("--batch-million", type=float, default=4)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    rows, batch = round(given.million * 1e6), round(given.batch_million * 1e6)
    if given.one:
        print(json.dumps(measure(Case(given.program[0], given.route[0], given.keys, rows, batch))))
        return
    print(
        f"# python -m benchmarks.transactions.transactions_in_spark {' '.join(sys.argv[1:])}\n# {machine()}"
    )
    for program in given.program:
        for route in given.route:
            arguments = ["--one", "--program", program, "--route", route, "--keys", str(given.keys)]
            arguments += ["--million", str(given.million), "--batch-million", str(given.batch_million)]
            found = run_contender("transactions.transactions_in_spark", *arguments)
            print_case(f"{program:6} {route:8}", found)


if __name__ == "__main__":
    main()
