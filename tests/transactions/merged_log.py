"""The serial run of a stream's transactions and of the requests beside it, in the order that they name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.procedures.engine import event_schema
from penstock.procedures.plain.rounds import PlainRounds
from penstock.procedures.procedure import Procedure
from penstock.procedures.requests.messages import decode_values, encode_values
from penstock.procedures.workflows.workflow import Workflow

__all__ = ["Calls", "check_merged_log"]

Calls = Mapping[str, tuple[str, Mapping[str, Any]]]
"""The procedure and the arguments of requests, by their ids."""


def check_merged_log(
    target: Procedure | Workflow,
    events: pa.Table,
    made: pa.Table,
    answers: pa.Table | None = None,
    calls: Calls | None = None,
    keep: Sequence[str] = ("number",),
) -> PlainRounds:
    """Run all transactions in plain Python, one after the other; return the tables that they leave.

    Parameters
    ----------
    target : Procedure or Workflow
        The program of the stream.
    events : pyarrow.Table
        The events. The first column of `keep` in `made` has the row number of each result's event.
    made : pyarrow.Table
        The results of the stream.
    answers : pyarrow.Table, optional
        The answers to requests.
    calls : mapping, optional
        What was called.
    keep : sequence of str
        The columns of the events that are in `made`.

    Raises
    ------
    AssertionError
        If a transaction is lost or came twice, a request has no answer or different ones, or a result, an
        answer or the order is not that of the serial run.
    """
    assert sorted(made[keep[0]].to_pylist()) == list(range(events.num_rows)), (
        "a transaction is lost, or came twice"
    )
    asked, found = calls or {}, _answers_by_id([] if answers is None else answers.to_pylist())
    assert found.keys() == asked.keys(), f"requests without answers: {sorted(asked.keys() - found.keys())}"
    log: list[tuple[int, int, str, Any]] = [
        (bucket, transaction, "", place)
        for place, (bucket, transaction) in enumerate(
            zip(made["bucket"].to_pylist(), made["transaction"].to_pylist(), strict=True)
        )
    ]
    log += [(one["bucket"], one["transaction"], one["procedure"], id_) for id_, one in found.items()]
    log.sort(key=lambda entry: entry[:2])
    for _, own in itertools.groupby(log, key=lambda entry: entry[0]):
        assert [number for number, (_, n, _, _) in enumerate(own) if n != number] == [], "numbers have gaps"
    texts = [one.text for one in target.stages] if isinstance(target, Workflow) else [target.text]
    called = {procedure for procedure, _ in asked.values()}
    texts += [target.catalog.procedures[name].text for name in sorted(called)]
    plain = PlainRounds(target.catalog.find_dependencies(texts))
    results = made.drop_columns(["bucket", "transaction", *keep]).to_pylist()
    numbers = made[keep[0]].to_pylist()
    for (bucket, procedure), group in itertools.groupby(log, key=lambda entry: (entry[0], entry[2])):
        places = [entry[3] for entry in group]
        if procedure:
            expected = _run_calls(plain, target, procedure, [asked[id_] for id_ in places])
            given = [_values_of(target, found[id_]) for id_ in places]
        else:
            own_numbers = [numbers[place] for place in places]
            assert own_numbers == sorted(own_numbers), f"bucket {bucket}: transactions are out of order"
            rows = events.take(own_numbers).combine_chunks().to_batches()[0]
            if isinstance(target, Workflow):
                expected = plain.run_workflow(target.stages, rows)
            else:
                expected = plain.run(target.text, rows, target.result_columns())
            given = [tuple(results[place].values()) for place in places]
        assert given == expected, f"bucket {bucket}: a result of {procedure or 'the stream'} is another"
    return plain


def _answers_by_id(answers: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in answers:
        assert found.setdefault(one["id"], one) == one, f"request {one['id']} has two answers"
    return found


def _run_calls(
    plain: PlainRounds, target: Procedure | Workflow, name: str, calls: Sequence[tuple[str, Any]]
) -> list[tuple[Any, ...]]:
    assert {procedure for procedure, _ in calls} == {name}, "an answer names another procedure"
    procedure = target.catalog.procedures[name]
    arguments = [encode_values(values) for _, values in calls]
    rows, misfits = decode_values(arguments, event_schema(procedure.program().event))
    assert not misfits
    return plain.run(procedure.text, rows, procedure.result_columns())


def _values_of(target: Procedure | Workflow, answer: Mapping[str, Any]) -> tuple[Any, ...]:
    schema = target.catalog.procedures[answer["procedure"]].results
    rows, _ = decode_values([answer["results"] or "{}"], schema)
    return (*rows.to_pylist()[0].values(), answer["rejected"])
