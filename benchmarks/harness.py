"""Shared parts of the benchmarks: workloads as files, contenders in separate processes, memory, tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

REPOSITORY = Path(__file__).resolve().parent.parent

ROCKSDB_STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Spark's settings for its RocksDB state store as its guide recommends it."""


SAMPLER = "py-spy"
"""The program that samples Python's processes; it is in the extra ``bench``."""


@dataclass(frozen=True)
class Workload:
    """Batches of updates (key long, ts timestamp, value double) with Zipf keys, as Parquet files."""

    name: str
    rows_per_batch: int
    keys: int
    theta: float
    batches: int
    seed: int = 1
    files_per_batch: int = 2

    def write(self, directory: Path) -> None:
        """Write the files, `files_per_batch` for each batch, in the order of their names and ages."""
        generator = np.random.default_rng(self.seed)
        weights = 1.0 / np.arange(1, self.keys + 1) ** self.theta
        cumulative = np.cumsum(weights / weights.sum())
        rows = self.rows_per_batch // self.files_per_batch
        begin = 1_700_000_000_000_000
        for number in range(self.batches * self.files_per_batch):
            ranks = np.searchsorted(cumulative, generator.random(rows)).clip(0, self.keys - 1)
            times = begin + np.arange(rows, dtype=np.int64) * 10
            begin = int(times[-1]) + 10
            table = pa.table(
                {
                    "key": (ranks * 2_654_435_761 % 2**31).astype(np.int64),
                    "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
                    "value": generator.random(rows),
                }
            )
            path = directory / f"part-{number:05d}.parquet"
            pq.write_table(table, path, row_group_size=500_000)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def session(master: str = "local[2]", **settings: str) -> Any:
    """Return a Spark session as all contenders get it."""
    from pyspark.sql import SparkSession

    from penstock.jobs.class_archive import archive_options
    from penstock.spark_ext.daemon import DAEMON, DAEMON_SETTING

    base = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        DAEMON_SETTING: DAEMON,
        **archive_options(),
    }
    builder = SparkSession.builder.master(master)
    for name, value in {**base, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def print_and_save(report: Iterable[str], path: Path) -> None:
    """Print the lines of a report as they are measured, and save all of them in the end."""
    lines = []
    for line in report:
        print(line, flush=True)
        lines.append(line)
    path.write_text("\n".join(lines) + "\n")


class Probe:
    """Polls processes within the context."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            self._look()


class MemoryProbe(Probe):
    """Samples the resident memory of this process and all below it, by kind; reports the peaks."""

    def __init__(self) -> None:
        super().__init__(self._sample)
        self.peak_mib: dict[str, float] = {}

    def _sample(self) -> None:
        totals = {"jvm": 0.0, "python": 0.0}
        for pid in descendants(os.getpid()):
            try:
                status = Path(f"/proc/{pid}/smaps_rollup").read_text()
                kind = _kind(pid)
            except OSError:
                continue
            if kind not in totals:
                continue
            pss = next(line for line in status.splitlines() if line.startswith("Pss:"))
            totals[kind] += int(pss.split()[1]) / 1024
        totals["total"] = totals["jvm"] + totals["python"]
        for kind, value in totals.items():
            self.peak_mib[kind] = max(self.peak_mib.get(kind, 0.0), value)


class ProcessorProbe(Probe):
    """Samples the processor time of this process and all below it, by kind."""

    def __init__(self) -> None:
        super().__init__(self._sample)
        self._seen: list[tuple[float, dict[str, float]]] = []

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Return what `processor_seconds` counted between two times since the epoch."""
        at = [time_s for time_s, _ in self._seen]
        return {
            kind: float(np.diff(np.interp([begin, end], at, [spent[kind] for _, spent in self._seen]))[0])
            for kind in self._seen[0][1]
        }

    def _sample(self) -> None:
        self._seen.append((time.time(), processor_seconds()))


def _kind(pid: int) -> str:
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return {"java": "jvm", SAMPLER: "sampler"}.get(name, "python")


def descendants(root: int) -> list[int]:
    """Return `root` and the processes below it."""
    children = _children()
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def daemons(root: int) -> list[int]:
    """Return the processes below `root` that Java started, which fork Python's workers."""
    children = _children()
    found = []
    for pid in descendants(root):
        # A process may have ended since.
        with contextlib.suppress(OSError):
            found += children.get(pid, []) if _kind(pid) == "jvm" else []
    return found


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            found.setdefault(int(fields[1]), []).append(int(entry.name))
    return found


def processor_seconds() -> dict[str, float]:
    """Return the processor time so far of this process, of Java, of its own compilers, and of all others.

    It excludes processes that have ended. The time of compiler threads that have ended counts as Java's.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    found = dict.fromkeys(("this", "java", "compilers", "workers"), 0.0)
    for pid in descendants(os.getpid()):
        place = Path(f"/proc/{pid}")
        try:
            kind, spent = _kind(pid), _spent(place)
        except OSError:
            continue
        if kind == "sampler":
            continue
        is_java = kind == "jvm"
        compilers = sum(_compiling(task) for task in (place / "task").glob("*")) if is_java else 0
        kind = "this" if pid == os.getpid() else "java" if is_java else "workers"
        found[kind] += (spent - compilers) / ticks
        found["compilers"] += compilers / ticks
    return found


def _compiling(task: Path) -> int:
    """Return the ticks of a thread that compiles; none of any other, or of one that has ended meanwhile."""
    try:
        return _spent(task) if (task / "comm").read_text().startswith(("C1 ", "C2 ")) else 0
    except OSError:
        return 0


def _spent(place: Path) -> int:
    fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def usage(root: int) -> tuple[float, float, int]:
    """Return the processor seconds so far, the resident MiB, and the number of a process and all below it."""
    seconds, mib, count = 0.0, 0.0, 0
    for pid in descendants(root):
        place = Path(f"/proc/{pid}")
        try:
            fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
            status = (place / "smaps_rollup").read_text()
        except OSError:
            continue
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # ended children, too
        mib += int(next(line for line in status.splitlines() if line.startswith("Pss:")).split()[1]) / 1024
        count += 1
    return seconds, mib, count


def batch_seconds(query: Any) -> list[float]:
    """Return how long each micro-batch with data took, in seconds, without the first ones (warm-up)."""
    took = [p.durationMs["triggerExecution"] / 1000 for p in query.recentProgress if p.numInputRows]
    return took[min(3, len(took) - 1) :]


def run_contender(script: str, *arguments: str, timeout_s: int = 1800) -> dict[str, Any]:
    """Run ``python -m benchmarks.<script> <arguments>`` and return the JSON on its last line."""
    command = [sys.executable, "-m", f"benchmarks.{script}", *arguments]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Workers import the benchmarks' modules too.
        "PYTHONPATH": str(REPOSITORY),
    }
    result = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout}\n{result.stderr}")
    value: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return value


def scratch(name: str) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory; TMPDIR says on which disk."""
    return tempfile.TemporaryDirectory(prefix=f"penstock-{name}-")


def machine() -> str:
    """Return one line about machine and versions."""
    from importlib.metadata import version

    from penstock.jobs.class_archive import archive_options

    packages = ", ".join(f"{p} {version(p)}" for p in ("pyspark", "pyarrow", "numba", "numpy"))
    archive = "Spark's classes archived" if archive_options() else "no archive of Spark's classes"
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {packages}, {archive}"


def run_over_loads(
    description: str, report: Callable[[list[int], int], Iterator[str]], *, updates: int, out: Path
) -> None:
    """Run a report over loads and a number of updates, which the command line may change; print and save."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loads", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--updates", type=int, default=updates, help="length of a run")
    parser.add_argument("--out", type=Path, default=out)
    arguments = parser.parse_args()
    print_and_save(report(arguments.loads, arguments.updates), arguments.out)


def report_head(command: str) -> list[str]:
    """Return the first lines of a result: its command, the machine and its load."""
    return [command, "", f"{machine()}; load {os.getloadavg()[0]:.1f} at the begin", ""]


def report_foot() -> list[str]:
    """Return the last lines of a result: the machine's load."""
    return ["", f"load {os.getloadavg()[0]:.1f} at the end"]


def median(values: list[float]) -> float:
    """Return the median; NaN for no values."""
    return statistics.median(values) if values else float("nan")


def pyplot() -> Any:
    """Return matplotlib's pyplot, which draws into files that are the same every time."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "penstock"
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, file: Path) -> None:
    """Write a figure, without the date."""
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
