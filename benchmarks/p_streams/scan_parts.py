"""The cost of predicates and projections in the scan of a p-stream, and the savings by intervals.

    python -m benchmarks.p_streams.scan_parts [--million 16] [--density sample] [--data FOLDER]

The stream is the cluster's (`benchmarks.streams`), with all its columns, and what the scan ends with are
CM1's fragments: the sum of a value for each second and category. One thread scans in process. ``all`` is the
time of the whole scan; ``decode`` what it takes to read the columns; ``predicate`` what it takes to
evaluate the predicate; ``select`` to take the rows for which it is true out of their columns, where that
is done; ``project`` to compute the value; ``fold`` is the rest. All are nanoseconds of a tuple that is read,
the least of several runs. Each predicate is evaluated by Arrow, one operation after the other, and as
intervals (`penstock.sql.comparisons`), in turn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from benchmarks.harness import machine
from benchmarks.p_streams.p_stream_speed import CHUNK_ROWS, Input, fill
from benchmarks.p_streams.scans import scan_p_stream
from benchmarks.streams import DATA
from penstock.checkpointing.p_stream import PStream
from penstock.compression import TableBlock
from penstock.operators.scan import scanner
from penstock.operators.scan.scanner import Scanner
from penstock.operators.scan.selection import select_rows
from penstock.operators.scan.spec import Fragments, Partial, Scan
from penstock.sql.comparisons import intervals_of
from penstock.sql.expression import Expression

_TIMES = 5

WHERE = {
    "nothing": None,
    "eventType = 1": ("eventType",),
    "cpu > 0.01": ("cpu",),
    "cpu BETWEEN 0.005 AND 0.1": ("cpu",),
    "cpu >= 0.005 AND cpu < 0.1": ("cpu",),
    "eventType = 1 AND cpu > 0.01": ("eventType", "cpu"),
    "priority < 9 AND ram > 0.001": ("priority", "ram"),
}
VALUES = {"cpu": ("cpu",), "cpu * 2 + ram": ("cpu", "ram")}


def scan_of(where: str, value: str) -> Scan:
    """Return the scan with a predicate and a value that is added up."""
    used = {"timestamp", "category", *(WHERE[where] or ()), *VALUES[value]}
    fragments = Fragments(1000, "timestamp", "s", ("category",), (Partial("sum", value, "sum"),))
    return Scan(tuple(sorted(used)), where=None if WHERE[where] is None else where, fragments=fragments)


class Parts:
    """The time of a scan by part."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, whose time is counted."""

        def counted(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds[name] += time.perf_counter() - begin

        return counted


def _unknown(part: Expression, schema: pa.Schema) -> None:
    """Know no comparison."""


def measured(stream: PStream, scan: Scan) -> dict[str, dict[str, float]]:
    """Return nanoseconds of a tuple for each part, without and with intervals."""
    best: dict[str, dict[str, float]] = {"evaluated": {}, "intervals": {}}
    for turn in range(2 * _TIMES):
        parts = Parts()
        how = list(best)[turn % 2]
        known = intervals_of if how == "intervals" else _unknown
        with (
            mock.patch.object(scanner, "intervals_of", known),
            mock.patch.object(TableBlock, "read", parts.timed("decode", TableBlock.read)),
            mock.patch.object(Scanner, "_mask", parts.timed("predicate", Scanner._mask)),
            mock.patch.object(scanner, "select_rows", parts.timed("select", select_rows)),
            mock.patch.object(Scanner, "_values_of", parts.timed("project", Scanner._values_of)),
        ):
            begin = time.perf_counter()
            scan_p_stream(stream, scan, threads=1)
            whole = time.perf_counter() - begin
        rows = stream.end - stream.start
        found = {name: parts.seconds[name] for name in ("decode", "predicate", "select", "project")}
        found = {"all": whole, **found, "fold": whole - sum(found.values())}
        for name, seconds in found.items():
            best[how][name] = min(best[how].get(name, float("inf")), seconds / rows * 1e9)
    return best


def lines(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the table, a line at a time."""
    chunks = Input("CM1", arguments.density, arguments.data).chunks(
        max(2, arguments.million * 1_000_000 // CHUNK_ROWS)
    )
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "p-stream"
        fill(place, chunks, None, goal="fast")
        stream = PStream(place)
        yield f"{stream.end} tuples, density {arguments.density}"
        for where in WHERE:
            for value in VALUES:
                for how, found in measured(stream, scan_of(where, value)).items():
                    if (where, value, how) == ("nothing", "cpu", "evaluated"):
                        header = "".join(f"{name:>11}" for name in found)
                        yield f"{'predicate':30}{'value':15}{'by':11}{header}"
                    if where != "nothing" or how == "evaluated":
                        numbers = "".join(f"{one:11.2f}" for one in found.values())
                        yield f"{where:30}{value:15}{how:11}{numbers}"


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--million", type=int, default=16, help="million tuples")
    parser.add_argument("--density", default="sample", choices=["sample", "dense"])
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    print(machine())
    print("$ python -m benchmarks.p_streams.scan_parts", *sys.argv[1:])
    for line in lines(arguments):
        print(line, flush=True)


if __name__ == "__main__":
    main()
