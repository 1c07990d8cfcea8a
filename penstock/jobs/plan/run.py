"""``penstock plan``: forecast how stale results get before a pipeline is deployed, without Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from yaml import YAMLError, safe_load

from penstock._extras import need_extra
from penstock.checkpointing.files import open_files
from penstock.checkpointing.files.locations import redact_secrets
from penstock.checkpointing.p_stream.reader import PStreamReader
from penstock.checkpointing.p_stream.survey import is_p_stream
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.jobs.ingest.column_types import cast_column, find_times
from penstock.jobs.pipelines.places import wrong_with
from penstock.jobs.pipelines.schemas import SAMPLE_ENDINGS, read_sample
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget
from penstock.operators.simulation.forecast import Forecast, Sample, forecast
from penstock.operators.simulation.micro_batches import Engine
from penstock.operators.update_stream.options import budget_of
from penstock.units import parse_duration_us

__all__ = ["PlanRequest", "best_of", "read_engine", "read_rows", "run_plan"]

_Number = TypeVar("_Number", int, float)
_MIN_SPAN_US: Final = 1_000_000
_CONTRACT_HINT: Final = "write --freshness 'p95: 2 s'"
_WITHOUT_FIXED: Final = "staleness leaves out the fixed time of a micro-batch, so it can be less than batch"
_BROKEN: Final = f"{_WITHOUT_FIXED}; * the promise, which includes the fixed time, is broken"


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The arguments of ``penstock plan``.

    Parameters
    ----------
    key, time, arrival
        Columns, as for `penstock.update_queue`. By default rows arrive at their `time`.
    cost, sink_cost, fixed : str
        The time for each tuple in the operator, the time for each result in the sink, and the time that a
        micro-batch takes without any tuples.
    metrics : path, optional
        The metrics file of a test run; `cost` and `fixed` are its measurements.
    freshness : str, optional
        A freshness contract, as in YAML.
    budget : str, optional
        The budget of a micro-batch: a number of rows, or a duration.
    loads, cores, policies
        The loads, numbers of cores and policies to forecast.
    max_rows : int
        The maximum number of rows of the sample to use.
    span : str
        The maximum simulated time at each load.
    """

    key: tuple[str, ...]
    time: str
    arrival: str | None = None
    cost: str = "0ms"
    sink_cost: str = "0ms"
    fixed: str = "400ms"
    metrics: Path | None = None
    freshness: str | None = None
    budget: str | None = None
    loads: tuple[float, ...] = (1.0, 3.0, 10.0)
    cores: tuple[int, ...] = (1, 2, 4)
    policies: tuple[str, ...] = tuple(map(str, Policy))
    max_rows: int = 200_000
    span: str = "5min"

    @property
    def limits(self) -> Budget | FreshnessContract:
        """The contract or budget.

        Raises
        ------
        InvalidUsageError
            If both are given, or the given value is malformed.
        """
        if self.freshness is None:
            rows = self.budget.isdigit() if self.budget is not None else False
            return budget_of(int(self.budget or 0) if rows else self.budget, timed=self.engine.cost_us > 0)
        if self.budget is not None:
            raise InvalidUsageError("a contract of freshness sets the budget", hint="leave out --budget")
        try:
            contract = safe_load(self.freshness)
        except YAMLError as error:
            raise InvalidUsageError(
                "the contract is not YAML", got=self.freshness, hint=_CONTRACT_HINT
            ) from error
        if not isinstance(contract, Mapping):
            raise InvalidUsageError(
                "the contract has no percentile with a colon",
                option="--freshness",
                got=self.freshness,
                hint=_CONTRACT_HINT,
            )
        return FreshnessContract.parse(contract)

    @property
    def engine(self) -> Engine:
        """The costs."""
        sink_us = parse_duration_us(self.sink_cost)
        if self.metrics is not None:
            return read_engine(self.metrics, sink_us)
        return Engine(parse_duration_us(self.fixed), parse_duration_us(self.cost), sink_us)


def read_engine(path: Path, sink_us: float = 0.0) -> Engine:
    """Return the costs in the metrics file of a test run, leaving out the micro-batch that starts workers.

    On Spark, each bucket of the test run must have had its own core; the local engine serves buckets in turn.
    A restart is noticed only if it has a new checkpoint or repeats a micro-batch. So the file should be from
    one run.

    Raises
    ------
    InvalidUsageError
        If there is no such file, it has fewer than two micro-batches that served tuples, or it has several
        queries or operators.
    """
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        served = _drop_first_of_each_start(_select_query(entries, path))
        serve_ms = [one["budget_used_ms"] / (one["buckets"] if one.get("spark_ms") else 1) for one in served]
        fixed_us = [
            round(1000 * max(one["batch_ms"] - ms, 0.0)) for one, ms in zip(served, serve_ms, strict=True)
        ]
        cost_us = 1000 * sum(one["budget_used_ms"] for one in served) / sum(one["emitted"] for one in served)
    except InvalidUsageError:
        raise
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        reason = {"reason": error.strerror} if isinstance(error, OSError) else {}
        raise InvalidUsageError(
            "cannot read costs from the metrics of a test run", file=str(path), **reason,
            hint="name the file of query.metrics of a run with several micro-batches",
        ) from error  # fmt: skip
    return Engine(sum(fixed_us) // len(fixed_us), cost_us, sink_us, tuple(fixed_us))


def _select_query(entries: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Return the entries of the results query, without the entries of other queries of the graph.

    Raises
    ------
    InvalidUsageError
        If there are several such queries, or the query has several operators.
    """
    names = {str(one.get("query")) for one in entries}
    main = {name for name in names if not any(name.startswith(f"{other}.") for other in names)}
    chosen = [one for one in entries if str(one.get("query")) in main]
    operators = {str(one.get("operator")) for one in chosen}
    if len(main) > 1 or len(operators) > 1:
        raise InvalidUsageError(
            "costs cannot be measured from the metrics of several queries or operators", file=str(path),
            queries=", ".join(sorted(main)), operators=", ".join(sorted(operators)),
            hint="set query.metrics to a new file for a test run of one query with one operator",
        )  # fmt: skip
    return chosen


def _drop_first_of_each_start(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the micro-batches that served tuples, without the first micro-batch after each start."""
    kept: list[dict[str, Any]] = []
    last: tuple[object, int] | None = None
    is_first = True
    for one in entries:
        run, number = one.get("query_id"), one.get("batch_id")
        if number is not None:
            is_first = is_first or (last is not None and (run != last[0] or number <= last[1]))
            last = run, number
        if one["emitted"]:
            if not is_first:
                kept.append(one)
            is_first = False
    return kept


def read_rows(path: str, max_rows: int) -> pa.Table:
    """Return the first rows of a p-stream or of a file. The path may be a URI; see `open_files`.

    Raises
    ------
    InvalidUsageError
        If there is nothing at the path, or the file has an unknown format.
    CorruptDataError, UnavailableError
        If a p-stream is damaged, or its file system refuses.
    """
    if "://" in path:
        place, mark, settings = path.partition("?")
        directory, _, name = place.rpartition("/")
        if Path(name).suffix.lower() not in SAMPLE_ENDINGS:
            return PStreamReader(path).read(max_rows)
        try:
            content = open_files(directory + mark + settings).read(unquote(name))
        except FileNotFoundError:
            raise InvalidUsageError("there is no such file", file=redact_secrets(path)) from None
        return read_sample(Path(name), content).slice(0, max_rows)
    file = Path(path)
    if file.is_file() or (file.suffix and not (file.exists() and is_p_stream(open_files(path)))):
        return read_sample(file).slice(0, max_rows)
    return PStreamReader(path).read(max_rows)


def _with_times(rows: pa.Table, names: list[str]) -> pa.Table:
    """Return rows with times in the named columns instead of texts, if all texts of the column are times."""
    for name in names:
        if name in rows.column_names and pa.types.is_string(rows[name].type):
            column = cast_column(rows[name], find_times(pa.string(), rows[name]))
            rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def run_plan(path: str, request: PlanRequest, *, out: Path | None, svg: Path | None) -> list[Forecast]:
    """Forecast, print a table and the advice, and write the requested files; see `PlanRequest`.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong.
    """
    if svg is not None:
        need_extra("plot", "a plot")
    for file in (out, svg):
        if file is not None and (wrong := wrong_with(file, directory=False)) is not None:
            raise InvalidUsageError(wrong)
    if min(request.loads, default=0) <= 0 or min(request.cores, default=0) < 1:
        raise InvalidUsageError("loads and cores are not positive", loads=request.loads, cores=request.cores)
    if parse_duration_us(request.span) < _MIN_SPAN_US:
        raise InvalidUsageError("too short a time to simulate", span=request.span, hint="give at least 1 s")
    arrival = [] if request.arrival is None else [request.arrival]
    rows = _with_times(read_rows(path, request.max_rows), [request.time, *arrival])
    for option, names in (("--key", request.key), ("--time", [request.time]), ("--arrival", arrival)):
        for name in names:
            if name not in rows.column_names:
                hint = did_you_mean(name, rows.column_names, "columns")
                raise InvalidUsageError(
                    "the sample has no such column", option=option, column=name, hint=hint
                )
    sample = Sample.of(rows, request.key, request.time, request.arrival)
    found = _forecast(sample, request)
    console = Console()
    console.print(_table(sample, found, request.limits))
    for line in _advise(found, request.limits):
        console.print(line)
    if out is not None:
        out.write_text("".join(json.dumps(one.to_row()) + "\n" for one in found), encoding="utf-8")
    if svg is not None:
        _plot(found, request.limits, svg)
    return found


def _forecast(sample: Sample, request: PlanRequest) -> list[Forecast]:
    """Return all forecasts, with a progress bar on a terminal."""
    policies = [Policy(name) for name in request.policies]
    forecasts = forecast(
        sample, request.engine, request.limits, loads=request.loads, cores=request.cores, policies=policies,
        most_us=parse_duration_us(request.span),
    )  # fmt: skip
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        total = len(request.loads) * len(request.cores) * len(policies)
        return list(progress.track(forecasts, total=total, description="forecasting"))


def best_of(found: Sequence[Forecast], load: float) -> Forecast:
    """Return the forecast that keeps all promises at a load on the fewest cores, else the freshest."""
    here = [one for one in found if one.load == load]
    kept = [one for one in here if one.kept and all(one.kept.values())]
    if kept:
        return min(
            kept, key=lambda one: (one.cores, one.staleness.percentile_ms(0.95), one.staleness.average_ms)
        )
    return min(here, key=lambda one: (one.staleness.percentile_ms(0.95), one.staleness.average_ms, one.cores))


def _advise(found: Sequence[Forecast], limits: Budget | FreshnessContract) -> list[str]:
    lines = []
    for load in dict.fromkeys(one.load for one in found):
        best = best_of(found, load)
        cores = "1 core" if best.cores == 1 else f"{best.cores} cores"
        p95 = best.staleness.percentile_ms(0.95)
        here = [one.staleness for one in found if (one.load, one.cores) == (load, best.cores)]
        is_same = len(here) > 1 and len({one.percentile_ms(0.95) for one in here}) == 1
        policy = "each policy" if is_same else best.policy
        if not isinstance(limits, FreshnessContract):
            lines.append(f"Load {load:g}: least stale with {policy} on {cores}, p95 {p95:,.0f} ms.")
        elif all(best.kept.values()):
            lines.append(f"Load {load:g}: the promise holds with {policy} on {cores}.")
        else:
            broken = ", ".join(name for name, kept in best.kept.items() if not kept)
            classes = f"; broken for {broken}" if len(best.kept) > 1 else ""
            lines.append(f"Load {load:g}: the promise holds on none of these cores{classes}.")
    return lines


def _table(sample: Sample, found: Sequence[Forecast], limits: Budget | FreshnessContract) -> Table:
    table = Table(
        title=f"Application staleness in ms; the sample has {sample.rate:,.0f} rows/s",
        caption=_BROKEN if isinstance(limits, FreshnessContract) else _WITHOUT_FIXED,
        box=box.SIMPLE_HEAD,
    )
    classes = list(found[0].by_class) if len(found[0].by_class) > 1 else []
    for head in ("load", "cores", "policy", "batch", "p50", "p95", *(f"{name} p95" for name in classes)):
        table.add_column(head, justify="left" if head == "policy" else "right")
    for one in found:
        broken = not all(one.kept.values())
        parts = [(one.by_class[name], not one.kept[name]) for name in classes]
        p95 = [(one.staleness, broken and not classes), *parts]
        table.add_row(
            f"{one.load:g}", str(one.cores), str(one.policy), f"{one.batch_ms:,.0f}",
            f"{one.staleness.percentile_ms(0.5):,.0f}",
            *(f"{part.percentile_ms(0.95):,.0f}{'*' if wrong else ''}" for part, wrong in p95),
        )  # fmt: skip
    return table


def _plot(found: Sequence[Forecast], limits: Budget | FreshnessContract, path: Path) -> None:
    """Draw p95 by cores, a panel for each load and a line for each policy."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    loads = list(dict.fromkeys(one.load for one in found))
    figure, panels = plt.subplots(
        1, len(loads), figsize=(4 * len(loads), 3.4), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, load in zip(panels[0], loads, strict=True):
        here = [one for one in found if one.load == load]
        for policy in dict.fromkeys(one.policy for one in here):
            line = [(one.cores, one.staleness.percentile_ms(0.95)) for one in here if one.policy == policy]
            axes.plot(*zip(*line, strict=True), marker="o", label=str(policy))
        for promise in limits.promises if isinstance(limits, FreshnessContract) else ():
            axes.axhline(promise.limit_us / 1000, color="black", linewidth=0.8, linestyle=":")
        axes.set(title=f"load {load:g}", xlabel="cores", ylim=(0, None))
        axes.set_xticks(sorted({one.cores for one in here}))
        axes.grid(visible=True, alpha=0.3)
    panels[0][0].set_ylabel("p95 of staleness (ms)")
    panels[0][-1].legend(fontsize="small")
    figure.savefig(path)
    plt.close(figure)


def parse_numbers(text: str, option: str, of: Callable[[str], _Number]) -> tuple[_Number, ...]:
    """Return numbers separated by commas, each parsed by `of`: ``int`` or ``float``.

    Raises
    ------
    InvalidUsageError
        If an entry is not such a number.
    """
    kind = "whole numbers" if of is int else "numbers"
    try:
        return tuple(of(part) for part in text.split(","))
    except ValueError:
        raise InvalidUsageError(
            f"not a list of {kind}", option=option, got=text, hint="write 1,3,10"
        ) from None
