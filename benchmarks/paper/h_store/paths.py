"""Make the actual and the estimated paths of transactions, for `penstock.speculating` (H-Store §6.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.designing.traces.recording import ProcedureTrace
from penstock.predicting.models.markov import bits
from penstock.predicting.models.parameters import ANY_COUNTER, Source
from penstock.predicting.models.predictor import ProcedureModels
from penstock.predicting.training import Samples
from penstock.procedures.compiler.reading import ProcedureText
from penstock.speculating.rules import UNKNOWN_KEY, ConflictRules, Step
from penstock.speculating.scheduler import Transaction
from penstock.speculating.statements import Statement, columns_used, specialize

__all__ = ["KeyNumbers", "read_transactions", "statements_of"]

_MIN_FINISH_PROBABILITY = 0.5


class KeyNumbers:
    """Numbers rows by their table and key; the same row always gets the same number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, tuple[Any, ...]], int] = {}

    def number(self, table: str, key: tuple[Any, ...]) -> int:
        """Return the number of a row; `UNKNOWN_KEY` if a value of its key is unknown."""
        if any(value is None for value in key):
            return UNKNOWN_KEY
        return self._numbers.setdefault((table, key), len(self._numbers))


def statements_of(trace: ProcedureTrace, text: ProcedureText) -> list[Statement]:
    """Return the statement of each query of a trace."""
    if trace.kind is not None:
        text = specialize(text, *trace.kind)
    used = columns_used([text], trace.tables)
    return [
        Statement.of(name.verb, trace.tables[name.table], used[name.table], has_key=name.verb != "select")
        for name in trace.names
    ]


def read_transactions(
    samples: Samples,
    models: ProcedureModels,
    statements: Sequence[Statement],
    rules: ConflictRules,
    keys: KeyNumbers,
) -> list[Transaction]:
    """Return the transactions of a trace, with the estimates that the models make.

    Parameters
    ----------
    samples : Samples
        The transactions of one procedure.
    models : ProcedureModels
        The models of the procedure.
    statements : sequence of Statement
        The statement of each query; see `statements_of`.
    rules : ConflictRules
        The conflict rules, which must include these statements.
    keys : KeyNumbers
        The numbers of rows, shared by all procedures.
    """
    trace = samples.trace
    numbers = [rules.number(one) for one in statements]
    paths = _paths(samples, numbers, keys)
    program = trace.program
    parameters = models.parameters(program.event, samples.placements, samples.partitions)
    values, walker = parameters.read(trace.events), models.walker(parameters, _MIN_FINISH_PROBABILITY)
    chosen = models.choose(trace.events, program.event, samples.partitions).tolist()
    rows = trace.events.to_pylist()
    sources = {(one.query, one.column, one.counter): one for one in models.sources}
    found = []
    for event, path in enumerate(paths):
        model = models.models[chosen[event]]
        guess = walker.estimate(values, event, chosen[event])
        steps: list[Step] = []
        for vertex, mask in zip(guess.path[1:], guess.masks, strict=False):
            name, counter = model.states[vertex][:2]
            spec = trace.tables[trace.names[name].table]
            key = tuple(
                _value(rows[event], sources.get((name, column, counter)) or
                       sources.get((name, column, ANY_COUNTER)), counter)
                for column in spec.key
            )  # fmt: skip
            steps += _steps(numbers[name], keys.number(spec.name, key), mask, samples.partitions)
        needed = frozenset(step.partition for step in (*path, *steps) if step.partition >= 0)
        counts: dict[int, int] = {}
        for step in path:
            if step.partition >= 0:
                counts[step.partition] = counts.get(step.partition, 0) + 1
        base = max(counts, key=counts.__getitem__, default=0)
        aborts = bool(trace.aborted[event])
        found.append(Transaction(trace.title, base, path, tuple(steps), needed | {base}, aborts))
    return found


def _paths(samples: Samples, numbers: Sequence[int], keys: KeyNumbers) -> list[tuple[Step, ...]]:
    trace = samples.trace
    columns: dict[int, Iterable[tuple[Any, ...]]] = {
        place: iter(list(zip(*(pa.array(one).to_pylist() for one in its), strict=True)))
        for place, its in trace.keys.items()
    }
    paths = []
    for queries in samples.queries:
        steps: list[Step] = []
        for query in queries:
            key = next(iter(columns[query.name]))
            number = keys.number(trace.names[query.name].table, key)
            steps += _steps(numbers[query.name], number, query.partitions, samples.partitions)
        paths.append(tuple(steps))
    return paths


def _steps(statement: int, key: int, mask: int, partitions: int) -> list[Step]:
    """Return a step for each partition that a query accesses."""
    if mask == 0:
        return [Step(statement, key, -1)]
    return [Step(statement, key, place) for place in bits(mask) if place < partitions]


def _value(event: dict[str, Any], source: Source | None, counter: int) -> Any:
    value = None if source is None else event[source.attribute]
    if isinstance(value, list):
        value = value[counter] if counter < len(value) else None
    if source is not None and source.is_digits and value is not None:
        return int(value) if value.isdecimal() else None
    return value
