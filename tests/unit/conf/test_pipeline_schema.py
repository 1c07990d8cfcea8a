"""The JSON Schema of pipelines takes what pipelines take."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from penstock.cli import app
from penstock.conf.document import read_document
from penstock.conf.pipeline import Pipeline, example_names, example_text


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", example_names())
def test_the_packaged_examples_are_valid(validator: jsonschema.Draft202012Validator, name: str) -> None:
    validator.validate(read_document(example_text(name), name).data)


_VALID = """
source:
  type: market
  rows: ${ROWS}
  start_time: "2026-01-31T09:30:00Z"
  real_time: ${REAL:-true}
queue: {key: symbol, time: time, budget: 80, weight: {GOOG: 60}}
sink: {type: pstream, path: out, options: {goal: fast, directIo: true, unitRows: 100}}
query: {checkpoint: ckpt}
"""


def _change(**fields: Any) -> dict[str, Any]:
    return yaml.safe_load(_VALID) | fields


def test_variables_lists_and_options_are_as_in_pipelines(
    validator: jsonschema.Draft202012Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWS", "5")
    validator.validate(_change())
    validator.validate(_change(query=None))
    Pipeline.model_validate(read_document(_VALID, "p.yaml").data)
    validator.validate(_change(queue={"key": ["a", "b"], "time": "t", "weight": "w"}))


@pytest.mark.parametrize(
    "fields",
    [
        {"source": {"type": "marked"}},
        {"source": {"type": "market", "rows": "many"}},
        {"source": {"type": "market", "rows": 0}},
        {"queue": {"key": "symbol"}},
        {"queue": {"key": "symbol", "time": "time", "polcy": "fifo"}},
        {"queue": {"key": 1, "time": "time"}},
        {"sink": {"type": "foreach_batch"}},
        {"windw": {}},
    ],
)
def test_mistakes_are_found(validator: jsonschema.Draft202012Validator, fields: dict[str, Any]) -> None:
    assert not validator.is_valid(_change(**fields))
