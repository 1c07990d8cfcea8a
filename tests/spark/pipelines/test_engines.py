"""A pipeline goes on where another engine stopped: the local one or Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.cli import app
from penstock.conf.pipeline import Pipeline, load_pipeline
from penstock.jobs.pipelines.run import run_to_end
from tests.samples.local_steps import SCHEMA, STEPS, steps_at, tally_serially, updates


def run_parts(
    place: Path, steps: dict[str, Any], engines: list[str], spark: SparkSession
) -> list[dict[str, Any]]:
    """Append rows and run, once for each engine; return the results."""
    steps = steps_at(place, steps)
    for number, engine in enumerate(engines):
        with PStreamWriter(place / "in", SCHEMA, threads=1) as writer:
            writer.append(updates(200, 200 * number))
        document = {
            "engine": engine,
            "source": {"type": "pstream", "path": str(place / "in")},
            "sink": {"type": "pstream", "path": str(place / "out")},
            "query": {
                "trigger": "available_now",
                # The last run serves the keys that wait.
                "drain": number == len(engines) - 1,
                "checkpoint": str(place / "checkpoint"),
                "spark": {"spark.sql.shuffle.partitions": "2"},
            },
        }
        run_to_end(Pipeline.model_validate(document | steps), spark=spark if engine == "spark" else None)
    rows: list[dict[str, Any]] = PStreamReader(place / "out").read().to_pylist()
    return rows


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("steps", STEPS)
def test_engines_take_turns_with_the_results_of_one(spark: SparkSession, tmp_path: Path, steps: str) -> None:
    turns = {
        name: run_parts(tmp_path / name, STEPS[steps], engines, spark)
        for name, engines in {
            "local": ["local", "local"],
            "to Spark": ["local", "spark"],
            "from Spark": ["spark", "local"],
        }.items()
    }
    assert len(turns["local"]) > 12
    if steps == "budget":
        # Which keys wait when a run ends depends on the number of its micro-batches.
        seen: dict[str, Any] = {name: {row["k"]: row for row in rows} for name, rows in turns.items()}
    else:
        seen = {name: sorted(map(repr, rows)) for name, rows in turns.items()}
    for name, rows in seen.items():
        assert rows == seen["local"], name
    if steps == "transactions":
        names = ("k", "t", "n", "total", "rejected")
        found = [{name: row[name] for name in names} for row in turns["local"]]
        expected = tally_serially(updates(200, 0), updates(200, 200))
        assert sorted(map(repr, found)) == sorted(map(repr, expected))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("policy", ["fifo", "linecutting"])
def test_micro_batches_that_spark_ran_are_replayed(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    (tmp_path / "in").mkdir()
    document = {
        "engine": "spark",
        "source": {
            "type": "files",
            "format": "parquet",
            "path": str(tmp_path / "in"),
            "schema": "k STRING, t BIGINT, v DOUBLE",
        },
        "queue": {"key": "k", "time": "t", "policy": policy, "budget": 6, "buckets": 2},
        "sink": {"type": "parquet", "path": str(tmp_path / "out")},
        "query": {
            "trigger": "available_now",
            "drain": False,
            "checkpoint": str(tmp_path / "checkpoint"),
            "metrics": str(tmp_path / "metrics.jsonl"),
            "retain_versions": 20,
            "spark": {"spark.sql.shuffle.partitions": "2"},
        },
    }
    file = tmp_path / "pipeline.yaml"
    file.write_text(json.dumps(document))
    for number in range(3):
        pq.write_table(updates(200, 200 * number), tmp_path / "in" / f"{number}.parquet")
        run_to_end(load_pipeline(file), spark=spark)

    def replay(*arguments: str) -> Any:
        command = ["replay", str(tmp_path / "checkpoint"), "--pipeline", str(file), "--json", *arguments]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code in (0, 1), result.output
        return json.loads(result.stdout)

    found = replay("--from", "0")
    assert [one for one in found if one["differences"]] == []
    # Spark tells no metrics of a micro-batch in which no bucket ran.
    compared = {"rows", "state", "counts"} | ({"staleness"} if policy == "linecutting" else set())
    busy = [one for one in found if one["rows_in"] or one["rows_out"]]
    assert len(busy) >= 3
    assert [one for one in busy if set(one["compared"]) != compared] == []
    assert all({"rows", "state"} <= set(one["compared"]) for one in found)
    assert sum(one["rows_in"] for one in found) == 600
    answer = replay("--policy", "freshest")
    assert list(answer) == [policy, "freshest"]
    assert answer["freshest"]["rows_in"] == 600
    assert 0 < answer["freshest"]["rows_out"] <= 6 * len(found)
