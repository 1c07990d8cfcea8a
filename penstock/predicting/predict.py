"""`predict`: train a predictor of a database's transactions from a trace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock._extras import need_extra
from penstock.conf.arguments import check_keywords
from penstock.designing.traces.log import read_log_and_tables
from penstock.designing.traces.recording import ProcedureTrace, record
from penstock.designing.traces.trace import Request
from penstock.errors import InvalidUsageError
from penstock.predicting.accuracy import Accuracy
from penstock.predicting.models.predictor import Predictor, ProcedureModels, describe_placements
from penstock.predicting.result import PredictionResult
from penstock.predicting.training import Samples, measure, train
from penstock.procedures.databases import Database
from penstock.procedures.partitions.design import PartitionDesign
from penstock.procedures.partitions.placement import place_tables

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["predict"]

_MIN_TRANSACTIONS = 20
_MAX_PARTITIONS = 64


@check_keywords
def predict(
    database: Database,
    requests: Iterable[Request] | Mapping[str, pa.Table | pa.RecordBatch | Mapping[str, Any]] | None = None,
    *,
    tables: Mapping[str, pa.Table | pa.RecordBatch | Mapping[str, Any]] | None = None,
    log: str | os.PathLike[str] | None = None,
    partitions: int = 4,
    ranges: Mapping[str, Sequence[Any]] | None = None,
    design: PartitionDesign | str | os.PathLike[str] | None = None,
    kind: str | None = None,
    threshold: float = 0.5,
    clustered: bool = True,
) -> PredictionResult:
    """Train a predictor of a database's transactions from a trace.

    The requests run in Python over a copy of the tables, and nothing is stored. Accuracy is measured with
    models that are trained on the first half of each procedure's transactions and tested on the rest. The
    returned predictor is trained on all transactions.

    Parameters
    ----------
    database : Database
        The tables and procedures.
    requests : mapping, or iterable of tuple
        A mapping from names of procedures to events; or pairs of a procedure's name and events, in the order
        of calls.
    tables : mapping, optional
        The rows that the tables have before the first request.
    log : str or path, optional
        The directory of a database, which another process may have open. The requests are the calls since the
        database's newest stored version, and the rows come from that version.
    partitions : int
        The number of partitions, 2 to 64.
    ranges : mapping, optional
        See `Database.open`.
    design : PartitionDesign, str or path, optional
        A design, instead of `partitions` and `ranges`.
    kind : str, optional
        An event attribute that decides what a procedure does. Each value of this attribute gets its own
        models.
    threshold : float
        The lowest probability at which a prediction is used.
    clustered : bool
        Whether features of events may choose among several models of a procedure; needs scikit-learn.

    Returns
    -------
    PredictionResult
        The predictor, which `Database.open` takes, and its accuracy.

    Raises
    ------
    InvalidUsageError
        If there are too few requests, a request does not fit its procedure, or an option is unusable.
    CorruptDataError, UnavailableError
        If the files of the log are damaged, or the file system refuses.
    """
    if clustered:
        need_extra("predict", "choosing among several models")
    if not 0.0 < threshold <= 1.0:
        raise InvalidUsageError("the threshold is not above 0 and at most 1", threshold=threshold)
    if (requests is None) == (log is None):
        raise InvalidUsageError(
            "a trace comes from requests or from a log", hint="give one of requests= and log="
        )
    specs = database.tables
    if design is not None:
        if ranges:
            raise InvalidUsageError("the design determines the ranges", hint="leave out ranges=")
        chosen = PartitionDesign.load(design)
        if chosen.several:
            raise InvalidUsageError(
                "a predictor supports only tables that are partitioned by one column",
                tables=sorted(chosen.several),
                hint="partition them by one column",
            )
        specs = {spec.name: spec for spec in chosen.apply(database.name, specs.values())}
        partitions, ranges = chosen.partitions, chosen.ranges
    if type(partitions) is not int or not 2 <= partitions <= _MAX_PARTITIONS:
        raise InvalidUsageError(
            "this is no number of partitions", partitions=repr(partitions), hint="use 2 to 64"
        )
    placements = place_tables(specs, partitions, ranges or {})
    if not placements:
        raise InvalidUsageError(
            "no table has partitions", database=database.name, hint="declare one with partition_by="
        )
    if log is not None:
        found, state = read_log_and_tables(database, log)
        traces = record(database, found, state, kind=kind)
    else:
        pairs = requests.items() if isinstance(requests, Mapping) else requests or ()
        traces = record(database, pairs, tables, kind=kind)
    procedures: list[ProcedureModels] = []
    accuracy: dict[str, Accuracy] = {}
    for trace in traces:
        if trace.transactions < _MIN_TRANSACTIONS:
            continue
        samples = Samples.of(trace, placements, partitions)
        half = samples.slice(0, len(samples) // 2)
        models = train(half, threshold, clustered=clustered)
        accuracy[models.title] = measure(models, samples.slice(len(half), len(samples)), threshold)
        procedures.append(train(samples, threshold, clustered=clustered, features=models.features))
    if not procedures:
        raise InvalidUsageError("the trace is too short", transactions=_most(traces), least=_MIN_TRANSACTIONS)
    predictor = Predictor(database.name, partitions, describe_placements(placements), threshold, procedures)
    return PredictionResult(predictor, accuracy)


def _most(traces: Iterable[ProcedureTrace]) -> int:
    return max(trace.transactions for trace in traces)
