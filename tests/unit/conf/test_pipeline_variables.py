"""Variables in pipelines: their values, their types, and messages that do not show them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.conf.document import PipelineError, read_document
from penstock.conf.pipeline import KafkaSource, load_pipeline
from penstock.errors import InvalidUsageError


def _values(text: str) -> dict[str, object]:
    return read_document(text, "p.yaml").data


def test_a_plain_value_gets_the_type_it_would_have_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWS", "200")
    monkeypatch.setenv("FLAG", "true")
    assert _values("a: ${ROWS}\nb: '${ROWS}'\nc: [x, '${ROWS} s']\nd: ${FLAG}\ne: ${ROWS}ms") == {
        "a": 200,
        "b": "200",
        "c": ["x", "200 s"],
        "d": True,
        "e": "200ms",
    }


def test_a_default_is_for_a_variable_that_is_not_set_or_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOPE", raising=False)
    monkeypatch.setenv("EMPTY", "")
    assert _values("a: ${NOPE:-5}\nb: ${EMPTY:-x}\nc: '${NOPE:-}'") == {"a": 5, "b": "x", "c": ""}


def test_other_dollars_stay() -> None:
    text = "a: $${ROWS}\nb: $1 $$ $NAME\nc: rlike(x, '^a$')"
    assert _values(text) == {"a": "${ROWS}", "b": "$1 $$ $NAME", "c": "rlike(x, '^a$')"}


def test_a_file_is_read_without_its_last_line_break(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    assert _values(f"a: x-${{file:{tmp_path / 'password'}}}-y") == {"a": "x-s3cret-y"}


def test_every_problem_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOPE", raising=False)
    text = "a:\n  b: ${NOPE}\n  c: ${1 + 1}\n  d: [ok, '${file:/no/such}']\n"
    assert [problem.partition(". Hint")[0] for problem in read_document(text, "p.yaml").unset.values()] == [
        "p.yaml:2: a.b: the variable NOPE is not set",
        "p.yaml:3: a.c: ${1 + 1} is not a variable",
        "p.yaml:4: a.d.1: ${file:/no/such} cannot be read: No such file or directory.",
    ]


_KAFKA = """
source: {{type: kafka, options: {{kafka.bootstrap.servers: '${{BROKERS}}', subscribe: trades{more}}}}}
queue: {{key: key, time: timestamp, policy: {policy}}}
sink: {{type: noop}}
"""


def test_values_reach_spark_and_not_the_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "broker-of-mine:9092")
    file = tmp_path / "p.yaml"
    file.write_text(_KAFKA.format(more="", policy="fifo"))
    source = load_pipeline(file).source
    assert isinstance(source, KafkaSource)
    assert source.options["kafka.bootstrap.servers"] == "broker-of-mine:9092"

    file.write_text(_KAFKA.format(more="", policy="'${BROKERS}'"))
    with pytest.raises(PipelineError, match="not one of") as caught:
        load_pipeline(file)
    for text in (str(caught.value), repr(caught.value), str(pickle.loads(pickle.dumps(caught.value)))):
        assert "broker-of-mine" not in text
        assert "${BROKERS}" in text
    error = InvalidUsageError("cannot reach broker-of-mine:9092", hint="ask broker-of-mine:9092", at="x")
    assert str(error) == "cannot reach ${BROKERS}: at=x. Hint: ask ${BROKERS}."


def test_a_variable_without_a_value_fails_unless_its_field_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOPE", raising=False)
    file = tmp_path / "p.yaml"
    file.write_text("source: {type: rate}\nqueue: {key: value, time: '${NOPE}'}\nsink: {type: noop}\n")
    for overrides in ([], ["queue.time=${NOPE}"], ["query.name=x"]):
        with pytest.raises(PipelineError, match="the variable NOPE is not set"):
            load_pipeline(file, overrides)
    for overrides in (["queue.time=timestamp"], ["queue={key: value, time: timestamp}"]):
        queue = load_pipeline(file, overrides).queue
        assert queue is not None
        assert queue.time == "timestamp"


def test_overrides_have_variables_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUDGET", "7")
    file = tmp_path / "p.yaml"
    file.write_text("source: {type: rate}\nqueue: {key: value, time: timestamp}\nsink: {type: noop}\n")
    queue = load_pipeline(file, ["queue.budget=${BUDGET}"]).queue
    assert queue is not None
    assert queue.budget == 7
    with pytest.raises(PipelineError, match=r"^--set queue.budget=\$\{NOPE\}: queue.budget: the var"):
        load_pipeline(file, ["queue.budget=${NOPE}"])


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_explain_does_not_show_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setenv("TOKEN", "token-of-mine")
    file = tmp_path / "p.yaml"
    file.write_text(
        "source: {type: files, format: csv, path: in, schema: 'k string, t bigint'}\n"
        "filter: k <> '${TOKEN}'\nqueue: {key: k, time: t}\nsink: {type: noop}\n"
    )
    shown = CliRunner().invoke(app, ["explain", str(file), *options]).stdout
    assert "token-of-mine" not in shown
    assert "${TOKEN}" in shown
