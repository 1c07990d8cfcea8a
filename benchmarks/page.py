"""Write docs/benchmarks.md from the files in benchmarks/results: ``python -m benchmarks.page``.

A test says whether the page is current. Each table of the page is a table of a file, with unchanged figures.
The page only links the other files.
"""

from __future__ import annotations

import itertools
import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["PAGE", "page"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
CONTENDERS = ("p-stream", "p-stream to p-stream", "parquet", "spark")
UPDATE_QUEUE_SPEED = ("workload", "contender", "s/batch", "M rows/s", "native = 1", "JVM MiB", "Python MiB")
STATE_IN_SPARK = (
    *("contender", "batch, s", "commit, ms", "MB/batch", "disk, MB", "JVM, MiB", "Python, MiB", "restart, s"),
    "load, ms",
)
UPDATE_QUEUE_COPIES = (
    *(
        "working copy",
        "keys",
        "serve, ms",
        "commit, ms",
        "snapshot, ms",
        "load, ms",
        "k upserts/s",
        "delta, MB",
    ),
    *("memory, MiB", "peak, MiB", "at the start, MiB", "disk, MiB"),
)
COMPRESSION = (
    *("codec", "columns", "ratio", "geo", "geo var", "encode", "decode", "as is: encode", "as is: decode"),
    "once",
)
TRANSACTIONS_SPEED = (
    *("program", "keys", "kernel", "not prefetching", "with Arrow", "dicts", "first run, s"),
    "tables, MiB",
)
PROGRAMS = ("GS", "SL", "OB", "TP")
QUERIES = {
    "CM1": "sum by category, 60 s by 1 s",
    "CM2": "average by job, 60 s by 1 s",
    "SG1": "average of all, 3600 s by 1 s",
    "SG2": "average by plug, 128 s by 1 s",
    "SG3": "SG2 above SG1, counted by house",
    "LRB1": "slow segments, 300 s by 1 s",
    "LRB2": "each vehicle by segment, 30 s by 1 s",
    "LRB3": "vehicles of each segment, of LRB2",
    "SM": "averages of three sensors, 60 s by 1 s",
    "YSB": "advertisements by campaign, 10 s, tumbling",
    "NQ5": "auctions with the most bids, 60 s by 1 s",
}


def lines(name: str) -> list[str]:
    """Return the lines of a file of results."""
    return (RESULTS / f"{name}.txt").read_text().splitlines()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown, with numbers to the right."""
    rows = list(rows)
    ruler = ["---" if re.search("[a-z]{4}", cell) else "---:" for cell in rows[0]]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ruler, *rows))


def cells(line: str) -> list[str]:
    """Return the cells of a line of a text table, which two spaces divide."""
    return re.split(r"\s{2,}", line.strip())


def text_table(name: str, begins: str, header: Sequence[str], *, section: str = "", gap: int = -1) -> str:
    """Return as Markdown the section's first text table whose header line begins with `begins`.

    A row with one cell too few lacks the cell at `gap`.
    """
    found = lines(name)
    at = found.index(section) if section else 0
    at = next(n for n in range(at, len(found)) if found[n].lstrip().startswith(begins))
    rows = [cells(line) for line in itertools.takewhile(str.strip, found[at + 1 :])]
    for row in rows:
        if len(row) < len(header) and gap >= 0:
            row.insert(gap, "")
    return table(header, rows)


def contenders(command: str) -> list[str]:
    """Return the contenders that a command of `benchmarks.windows.windows_in_spark` names, in their order."""
    if "--contender" not in command:
        return []
    text = re.sub(r'"?p-stream to p-stream"?', '"p-stream to p-stream"', command.split("--contender", 1)[1])
    names = []
    for word in shlex.split(text.split("|")[0]):
        if word.startswith("--"):
            break
        names.append(word)
    return names


def windows() -> str:
    """Return the newest run of each query and density that has Spark's own windows in it."""
    newest: dict[tuple[str, str], dict[str, str]] = {}
    columns: list[str] = []
    for line in lines("windows_in_spark"):
        if "python -m benchmarks.windows.windows_in_spark" in line:
            columns = contenders(line)
        elif line.startswith("query "):
            columns = [cell for cell in cells(line)[2:] if cell in (*CONTENDERS, "rows")]
        else:
            row = cells(line.split(";", 1)[0])
            if len(row) > 3 and row[0] in QUERIES and row[1] in ("sample", "dense") and "spark" in columns:
                figures = dict(zip(columns, row[2:], strict=False))
                newest[row[0], row[1]] = figures
    rows = []
    for (query, density), figures in sorted(newest.items(), key=lambda item: list(QUERIES).index(item[0][0])):
        shown = [figures.get(name, "") for name in CONTENDERS]
        rows.append([f"{query}: {QUERIES[query]}", density, *shown])
    header = ["query", "density", "from a p-stream", "into another p-stream", "from Parquet", "Spark's own"]
    return table(header, rows)


def p_streams() -> str:
    """Return the newest, first row of each query of `p_stream_speed --mode spark`."""
    newest: dict[tuple[str, str], list[str]] = {}
    inside = False
    for line in lines("p_stream_speed"):
        row = cells(line)
        inside = (inside and bool(line.strip())) or row[:4] == ["spark", "density", "spark", "sustained"]
        if inside and row[0] in QUERIES:
            newest.setdefault(
                (row[0], row[1]), [*("" if cell == "nan" else cell for cell in (*row[:5], row[6], row[-1]))]
            )
    header = ["query", "density", "Spark reads", "while written", "its writer", "written, %", "Scabbard"]
    return table(header, newest.values())


def recovery() -> str:
    """Return the phases of the newest recovery."""
    found = lines("recovery")
    begin = max(n for n, line in enumerate(found) if line.startswith("after the kill"))
    return table(
        ["after the kill", "seconds"], (row for row in map(cells, found[begin + 1 :]) if len(row) == 2)
    )


def s_store() -> str:
    """Return the figures of S-Store for which there are results, in the paper's order."""
    found = sorted(
        RESULTS.glob("s_store_fig*.txt"), key=lambda path: (len(path.stem.rstrip("ab")), path.stem)
    )
    parts = []
    for path in found:
        number = path.stem.removeprefix("s_store_fig")
        title, paper, *rest = path.read_text().strip().splitlines()
        told = title.split(": ", 1)[1]
        header, *rows = map(cells, rest[rest.index("", 1) + 1 :])
        ruler = ["---:"] * len(header)
        marked = ["| " + " | ".join(row) + " |" for row in (header, ruler, *rows)]
        parts += [
            f"### Figure {number}",
            textwrap.fill(
                f"{told[0].upper()}{told[1:]} {paper} ([file](../benchmarks/results/{path.name}))",
                120,
                break_on_hyphens=False,
                break_long_words=False,
            ),
            f"![S-Store, figure {number}](figures/s-store-{number}.svg)",
            "\n".join(marked),
        ]
    return "\n\n".join(parts)


def t_stream() -> str:
    """Return the figures of TStream for which there are results, in the paper's order."""
    found = sorted(
        RESULTS.glob("t_stream_fig*.txt"), key=lambda path: (len(path.stem.rstrip("ab")), path.stem)
    )
    parts = []
    for path in found:
        number = path.stem.removeprefix("t_stream_fig")
        title, *rest = path.read_text().strip().splitlines()
        told = title.split(": ", 1)[1]
        header, *rows = map(cells, rest[rest.index("", 1) + 1 :])
        parts += [
            f"### TStream, figure {number}",
            textwrap.fill(
                f"{told[0].upper()}{told[1:]} ([file](../benchmarks/results/{path.name}))",
                120,
                break_on_hyphens=False,
                break_long_words=False,
            ),
            f"![TStream, figure {number}](figures/t-stream-{number}.svg)",
            table(header, rows),
        ]
    return "\n\n".join(parts)


def peers() -> str:
    """Return the transactions a second of the peers, with a column for each program."""
    sections: dict[str, dict[str, dict[str, str]]] = {}
    keys = ""
    for line in lines("transactions_peers"):
        if found := re.match(r"(\d+) keys", line):
            keys = found.group(1)
        elif line[:3].rstrip() in PROGRAMS:
            program, contender, _, rate, *_ = cells(line)
            sections.setdefault(keys, {}).setdefault(contender, {})[program] = rate
    rows = [
        [f"{int(keys):,}", contender, *(rates.get(program, "") for program in PROGRAMS)]
        for keys, contenders in sections.items()
        for contender, rates in contenders.items()
    ]
    return table(["keys", "contender", *PROGRAMS], rows)


def command(name: str) -> str:
    """Return the first command of a file of results as Markdown, or that its scripts were not kept."""
    text = (RESULTS / f"{name}.txt").read_text()
    found = re.search(r"(python -m benchmarks\.|script/)[^\n();,|]*", text)
    return f"`{found.group().strip()}`" if found else "not kept"


def page() -> str:
    """Return the page."""
    machine = re.search(r"2 cores, [^\n]*?numpy [\d.]+", (RESULTS / "update_queue_speed.txt").read_text())
    assert machine is not None
    files = sorted(path.stem for path in RESULTS.glob("*.txt"))
    links = [[f"[{name}.txt](../benchmarks/results/{name}.txt)", command(name)] for name in files]
    return f"""# Benchmarks

This page is written by `python -m benchmarks.page` from the files in `benchmarks/results`. Each file names
the commands that made it.

The machine: {machine.group()}.

It is a virtual machine whose speed drifts, so compare figures of one run with each other. Figures of
micro-batches are medians after a warm-up.

## Update queues

Each contender keeps the newest tuple of each key, with three columns, in state. `native` is Spark's
`groupBy(key).agg(max_by(struct))`. `native-flat` is `agg(max(ts), max_by(value, ts))`, which Spark
compiles to faster code if all columns have a fixed width. `per-key` is `applyInPandasWithState` grouped
by the update key. The column `native = 1` has the speed relative to `native`
([file](../benchmarks/results/update_queue_speed.txt)).

{text_table("update_queue_speed", "workload", UPDATE_QUEUE_SPEED, gap=4)}

## State

A million keys, 50 micro-batches of 100,000 updates. `penstock` keeps key and time, `penstock-rows` whole
rows, `rocksdb` is Spark's own state with changelog checkpointing. `restart` is the time to the first output
([file](../benchmarks/results/state_in_spark.txt)).

{text_table("state_in_spark", "contender", STATE_IN_SPARK)}

The working copies of an update queue ([file](../benchmarks/results/update_queue_copies.txt)):

{text_table("update_queue_copies", "keys", UPDATE_QUEUE_COPIES)}

## Windows

The queries of Scabbard's Table 3 and NEXMark's fifth query (NQ5) run in Spark, with checkpoints. Speeds
are in million tuples a second. Each row shows the newest run that also measured Spark's own windows over
Parquet files. `sample` uses the files' own event times, `dense` has 10,000 tuples in each second of event
time. An empty cell was not measured in this run ([file](../benchmarks/results/windows_in_spark.txt), with
the sizes of micro-batches).

{windows()}

## P-streams

One process appends durably, with direct I/O, while Spark reads and makes the fragments of windows; million
tuples a second. `Scabbard` is the speed of the paper's own system on this machine
([file](../benchmarks/results/p_stream_speed.txt)).

{p_streams()}

## Transactions

The programs GS, SL, OB and TP (TStream §VI-A) run in one thread. Every row has changed since the last
version. Speeds are in million transactions a second
([file](../benchmarks/results/transactions_speed.txt)). `kernel` prefetches from large tables; `dicts` is
plain Python.

{text_table("transactions_speed", "program", TRANSACTIONS_SPEED)}

The same programs, event by event, in other systems on the same machine, transactions a second
([file](../benchmarks/results/transactions_peers.txt), with memory and how each is run). No contender syncs
its writes: Penstock and dicts are in memory, PostgreSQL commits asynchronously. All contenders give the same
results and tables. Runs of two threads are not compared, because their order is not fixed. Much slower
contenders run fewer of the same events.

{peers()}

### OLTP

`python -m benchmarks.oltp` runs TPC-C, SmallBank and Voter in memory and with a log (group commit of 1
ms and 10 ms), and prints percentiles of the time to the durable answer at 10,000 and 100,000 requests a
second. SQLite (WAL, `synchronous=FULL`), DuckDB and PostgreSQL (PL/pgSQL, `synchronous_commit=on`) run the
same requests, one or a hundred a commit ([file](../benchmarks/results/oltp.txt)). In tests they give the
results and tables of Penstock. `--benchmarks tatp ycsb` runs others. `--quick` takes small tables.

`python -m benchmarks.partitions.partitions` compares partitions: transfers with more and more work, then
SmallBank and TPC-C ([file](../benchmarks/results/partitions.txt)). Splitting a call takes about half as
long as running its transfers, so two partitions pay off for transactions with more work. `python -m
benchmarks.paper.h_store` runs Voter on one to eight partitions, as in (H-Store Fig. 3.10,
[file](../benchmarks/results/h_store_fig3_10.txt)); runs with more partitions than the machine has cores
are in virtual time, and the result says so.

`python -m benchmarks.designs.designs` compares the designs of [`penstock design`](how-to/design.md) with
those of simpler algorithms, as in (H-Store Fig. 4.5), and counts designs a second
([file](../benchmarks/results/designs.txt)). `python -m benchmarks.designs.design_figures` makes Fig. 4.6 to
4.10, with the paper's values where its text has them; throughput is in virtual time.

## Figures of S-Store

The experiments of (S-Store §4). Figures 5 to 9 compare Penstock with itself, equally durable: procedures with
triggers, windows and workflows, against the same procedures without them. `python -m
benchmarks.paper.s_store NUMBER` measures and draws a figure. A client is a separate process that calls the
database over a socket. A client that drives a workflow calls each procedure after the previous result. A
client of a stored workflow sends events without waiting, and the server runs all waiting events as one call.
So the ratios of figures 6 and 8 include the round trips and syncs that these larger calls save. In the column
`workflow, client waits` the client waits for each result, so nothing is saved by larger calls. In figure 11 a
core keeps up while the worst latency is below the threshold. Values are medians of the runs; the command in
the file gives the number of runs. Ratios are medians of the ratios of the runs.

{s_store()}

## Figures of TStream

The experiments of (TStream §VI), once with cheap accesses and once with about 1 µs of work at each.
`python -m benchmarks.paper.t_stream NUMBER` measures and draws a figure. No-Lock, LOCK, MVLK and PAT are the
schemes that TStream is compared with, over an array of numbers, without look-ups, checks or an undo log.
`serial`, `chains`, `levels` and `split` are modes of the engine, which looks rows up, checks and undoes.
Threads are two; `serial` has one. The files name the load of the machine: under other load, runs with two
threads lose more than those with one.

Chains lose to the serial run at every point of figures 8 to 11: they take 7 to 64 times as long with cheap
accesses, and 1.1 to 5.8 times with 1 µs of work. Figure 9 shows why: to plan a batch takes longer than to run
it serially, also with 1 µs of work. TStream wins in the paper on up to 40 cores, where locks wait for each
other and a serial run uses one core; two cores cannot show that. So `serial` is the default, and `adaptive`
measures.

In figure 9 the useful time of a mode is that of the serial run; `sync` is the rest of the state access mode,
and `plan` is the compute mode, which builds chains. Remote memory is not told apart on one socket. In figure
13 all schemes of a program get events at one rate. A mode runs a batch at each punctuation, after 500 events,
so an event waits for those behind it; `serial` runs all events that are due.

{t_stream()}

## Compression

All 60 columns of seven streams, on one core. `ratio` counts all bytes; `geo` is the geometric mean of the
columns' ratios. `encode` and `decode` are MB/s of raw bytes ([file](../benchmarks/results/compression.txt),
which explains the other columns).

{text_table("compression", "columns", COMPRESSION, section="all columns")}

## Recovery

The driver, JVM and workers of a graph are killed and started again. The graph has an update queue of a
million keys, with 155 MB of state, and a p-stream of 1.1 GB ([file](../benchmarks/results/recovery.txt)).

{recovery()}

## All files

{table(["file", "first command"], links)}
"""


if __name__ == "__main__":
    PAGE.write_text(page())
