"""Kill the driver, the JVM or a worker under transactions, and compare with the serial run."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock._failpoints import COORDINATOR_POINTS, SINK_POINTS, STATE_POINTS, TASK_ROWS_POINTS
from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.procedures.requests.client import ANSWERS_PLACE
from tests.crash.graphs.window_kills import KINDS, kill_one
from tests.crash.harness import count_batches, kill_all, random_moment, started, why
from tests.crash.transactions import transaction_job
from tests.crash.transactions.callers import Callers
from tests.crash.transactions.transaction_job import CALLS, FLOWS, IS_LONG, NUMBER, Flow
from tests.servers.processes import until
from tests.transactions.merged_log import check_merged_log
from tests.transactions.workflows import state_bytes, table_bytes

_JOB = "transactions/transaction_job.py"
_ROWS = 800
_NOT_HERE = ("operator.after_enqueue", "operator.after_apply", "operator.before_release")
"""Points of queues, and the one of a release, which comes after more versions than a start makes."""
_POINTS_A_START = 6
"""A kill at a fail point costs a worker; a start costs a driver, a JVM and all workers."""
_PATIENCE_S = 900.0
"""The longest wait for what a start has to do, on a machine with other load, too."""
_ALL = (*STATE_POINTS, *SINK_POINTS, *TASK_ROWS_POINTS, *(COORDINATOR_POINTS if IS_LONG else ()))
POINTS = tuple(point for point in _ALL if point not in _NOT_HERE)


@dataclass(frozen=True)
class Start:
    """A start of the job: a process that reaches a fail point is killed, then one at a random moment."""

    points: tuple[str, ...]
    kind: str


def starts_of(draw: random.Random, kills: int) -> Iterator[Start]:
    """Draw starts with this many kills in all; fail points and kinds of processes are equally frequent."""
    points: list[str] = []
    kinds: list[str] = []
    while kills:
        if len(points) < _POINTS_A_START:
            points += draw.sample(POINTS, len(POINTS))
        kinds = kinds or draw.sample(KINDS, len(KINDS))
        count = min(_POINTS_A_START, kills - 1)
        yield Start(tuple(dict.fromkeys(points[:count])), kinds.pop())
        kills -= 1 + len(dict.fromkeys(points[:count]))
        del points[:count]


class Events:
    """The events of queries, which come in steps.

    Parameters
    ----------
    directory : Path
        The directory of the job.
    flows : mapping
        The queries, by name.
    seed : int
        Draws the events.
    count : int
        The number of events of each query in a step.

    Attributes
    ----------
    rows : dict
        The events of each query so far.
    """

    def __init__(self, directory: Path, flows: Mapping[str, Flow], seed: int, count: int) -> None:
        self._directory, self._flows, self._seed, self._count = directory, flows, seed, count
        self.rows: dict[str, list[pa.RecordBatch]] = {name: [] for name in flows}

    def add(self) -> None:
        """Append a step to the source of each query."""
        for name, flow in self._flows.items():
            first = sum(one.num_rows for one in self.rows[name])
            drawn = flow.workload(self._count, self._seed + first)
            if not first and flow.opening is not None:
                drawn = pa.Table.from_batches([flow.opening, drawn]).combine_chunks().to_batches()[0]
            numbers = pa.array(range(first, first + drawn.num_rows), pa.int64())
            self.rows[name].append(drawn.append_column(NUMBER, numbers))
            to = self._directory / name / "source"
            with PStreamWriter(to, self.rows[name][0].schema, threads=1, unit_rows=500) as writer:
                writer.append(pa.Table.from_batches(self.rows[name][-1:]))

    def committed(self, *names: str) -> int:
        """Return how many micro-batches queries have committed, by default all of them."""
        return sum(count_batches(self._directory / name / "checkpoint") for name in names or self._flows)


def callers_of(
    directory: Path, flows: Mapping[str, Flow], seed: int, stack: contextlib.ExitStack
) -> dict[str, Callers]:
    """Start the callers of the queries that take requests; `stack` ends them."""
    return {
        name: stack.enter_context(Callers(flow.database, directory / name / CALLS, flow.calls, seed))
        for name, flow in flows.items()
        if flow.calls is not None
    }


def run_with_kills(directory: Path, seed: int, kills: int, *, say: Callable[[str], None] = print) -> None:
    """Kill `kills` times, at moments and processes drawn from `seed`; compare results and tables.

    Events come while the job runs and while it does not. A job whose worker is killed goes on for a while;
    then, as after every kill, all that is left of it is killed, too.

    Raises
    ------
    AssertionError
        If a result or a row of a table is not that of the serial run, or the job ended by itself.
    """
    draw = random.Random(seed)
    events = Events(directory, FLOWS, seed, _ROWS)

    def environment(armed: str = "") -> dict[str, str]:
        return {transaction_job.START: str(draw.randrange(10**6)), transaction_job.POINTS: armed}

    with contextlib.ExitStack() as stack:
        callers = callers_of(directory, FLOWS, seed, stack)
        events.add()
        done = 0
        for number, start in enumerate(starts_of(draw, kills)):
            markers = {point: directory / f"died-{number}-{point}" for point in start.points}
            armed = ";".join(f"{point}=kill@{marker}" for point, marker in markers.items())
            with started(directory, _JOB, **environment(armed)) as job:
                goal = events.committed() + draw.choice([0, 1, 2, 3])
                events.add()

                def reached(markers: dict[str, Path] = markers, goal: int = goal) -> bool:
                    return events.committed() >= goal and all(marker.exists() for marker in markers.values())

                until(lambda job=job, reached=reached: reached() or job.poll() is not None, _PATIENCE_S)  # type: ignore[misc]
                assert reached(), f"no progress to {start}: {why(job, directory)}"
                random_moment(draw)
                assert job.poll() is None, why(job, directory)
                if start.kind != "all":
                    kill_one(job, start.kind, draw)
                    random_moment(draw)
                assert start.kind != "worker" or job.poll() is None, why(job, directory)
                killed = kill_all(job)
                # A driver whose JVM is gone may have ended with an error.
                assert start.kind == "jvm" or job.returncode == -signal.SIGKILL
            events.add()
            done += 1 + len(start.points)
            what = ", ".join((*start.points, start.kind))
            batches = events.committed()
            say(f"kill {done} of {kills}: {what}, {len(killed)} processes after {batches} micro-batches")
        with started(directory, _JOB, **environment()) as job:
            for one in callers.values():
                one.finish(_PATIENCE_S)
            (directory / "finished").touch()
            assert until(lambda: job.poll() is not None, _PATIENCE_S), f"no end: {why(job, directory)}"
            assert job.returncode == 0, why(job, directory)
    for name, flow in FLOWS.items():
        verify(directory / name, flow, events.rows[name], callers.get(name), say)


def verify(
    place: Path,
    flow: Flow,
    events: list[pa.RecordBatch],
    callers: Callers | None,
    say: Callable[[str], None] = print,
) -> None:
    """Compare results, answers and tables with those of the serial run."""
    sink = PStreamReader(place / "sink").read()
    calls, answers, asked = {}, None, ""
    if callers is not None:
        calls, answers = callers.calls, PStreamReader(place / CALLS / ANSWERS_PLACE).read()
        assert answers.num_rows == len(calls) + callers.asked_again, "a request has no answer, or several"
        asked = f", {len(calls)} requests, {callers.asked_again} of them asked again,"
    if flow.forwards:  # arrival orders the transactions of all buckets
        one_bucket = pa.array([0] * len(sink), pa.int32())
        sink = sink.set_column(0, "bucket", one_bucket).set_column(1, "transaction", sink[NUMBER])
    plain = check_merged_log(flow.target, pa.Table.from_batches(events), sink, answers, calls)
    wanted = state_bytes(plain, flow.database)
    for name, spec in flow.target.tables.items():
        assert table_bytes(pq.read_table(place / f"{name}.parquet"), spec) == wanted[name], f"{name} differs"
    rejected = len(sink) - sink["rejected"].null_count
    say(f"{place.name}: {len(sink)} transactions{asked} as without kills; {rejected} were rejected")
