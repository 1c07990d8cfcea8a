"""The messages for errors that Spark raises."""

from __future__ import annotations

import json

import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException

from penstock.errors import CorruptDataError, InvalidUsageError, PenstockError, UnavailableError, users_line
from penstock.spark_ext.api.failure import (
    failure_of,
    is_without_answer,
    kind_of,
    root_cause,
    spark_message,
)

_STACK = "\n\tat org.apache.spark.Executor.run(Executor.scala:1)\n\tat java.lang.Thread.run(Unknown Source)\n"


def test_the_last_error_of_penstock_wins() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted.\n"
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n'
        "penstock.errors.UnavailableError: the disk is full.\n"
        "\nDuring handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        '  File "b.py", line 2, in g\n'
        "penstock.errors.CorruptDataError: the checksum is another: file=/a/b. Hint: restore it.\n" + _STACK
    )
    assert root_cause(Exception(text)) == "the checksum is another: file=/a/b. Hint: restore it."


def test_an_error_of_penstock_ends_before_the_sql_state() -> None:
    text = (
        "[X] Failed to create: Traceback (most recent call last):\n"
        "penstock.errors.InvalidUsageError: no option 'rowz'. Hint: rows.\n SQLSTATE: 38000"
    )
    assert root_cause(Exception(text)) == "no option 'rowz'. Hint: rows."


def test_a_python_error_is_the_line_that_ends_its_traceback() -> None:
    text = (
        "terminated with exception: Job aborted due to stage failure: PythonException: "
        "Traceback (most recent call last):\n"
        '  File "c.py", line 3, in <lambda>\n'
        "    return 1 / 0\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero\n" + _STACK
    )
    assert root_cause(Exception(text)) == "ZeroDivisionError: division by zero"


def test_a_cause_inside_the_jvm_is_the_last_one() -> None:
    text = (
        "terminated with exception: Job aborted" + _STACK + "Caused by: java.io.IOException: first\n"
        "\tat x.y(Z.scala:1)\nCaused by: org.apache.spark.SparkException: [NO_DISK] No space left\n"
    )
    assert root_cause(Exception(text)) == "SparkException: [NO_DISK] No space left"


def test_an_error_of_spark_is_its_message_without_state_and_plan() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012\n"
        "=== Streaming Query ===\nIdentifier: [id = 1]"
    )
    assert root_cause(Exception(text)) == "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`"
    assert spark_message(Exception("[PATH] There is no such path: /x. SQLSTATE: 42K03")) == (
        "[PATH] There is no such path: /x"
    )


def test_an_error_of_penstock_names_the_python_error_that_caused_it() -> None:
    text = (
        "Traceback (most recent call last):\n"
        "penstock.errors.InvalidUsageError: apply raised an error: error=TypeError.\n"
        "Caused by: Traceback (most recent call last):\n"
        '  File "c.py", line 3, in f\n'
        "TypeError: f expected 2 arguments, got 1\n SQLSTATE: 38000 SQLSTATE: XXKST"
    )
    assert root_cause(Exception(text)) == (
        "apply raised an error: error=TypeError. Caused by TypeError: f expected 2 arguments, got 1"
    )


def test_the_class_of_an_error_survives_spark() -> None:
    text = "penstock.errors.CorruptDataError: a file is damaged: file=x.\n\tat org.apache.spark"
    assert kind_of(RuntimeError(text)) is CorruptDataError
    assert kind_of(InvalidUsageError("wrong")) is InvalidUsageError
    assert kind_of(RuntimeError("penstock.errors.NoSuchError: no")) is PenstockError
    assert kind_of(ValueError("no")) is PenstockError
    assert kind_of(AnalysisException("no such sink")) is InvalidUsageError
    absent = "SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: x."
    assert kind_of(RuntimeError(absent)) is InvalidUsageError


def test_of_a_python_that_does_not_start_its_last_line_is_told() -> None:
    text = (
        "org.apache.spark.SparkException: \nError from python worker:\n"
        "  Traceback (most recent call last):\n"
        "  /usr/bin/python3: No module named pyspark\nPYTHONPATH was:\n  /opt/spark/python\n"
        "org.apache.spark.SparkException: EOFException occurred while reading the port number\n" + _STACK
    )
    assert root_cause(Exception(text)) == "/usr/bin/python3: No module named pyspark"


def test_an_error_of_a_call_into_the_jvm_is_told_without_its_stack() -> None:
    text = (
        "An error occurred while calling o205.start.\n: java.io.IOException: {}\n"
        "\tat org.apache.hadoop.fs.FileSystem.primitiveMkdir(FileSystem.java:1414)\n"
    )
    error = failure_of(Exception(text.format("the disk is gone")), "the query cannot start", query="q")
    assert str(error) == "the query cannot start: query=q cause=IOException: the disk is gone."
    refused = text.format("mkdir of file:/proc/x failed")
    error = failure_of(Exception(refused), "the query cannot start", query="q")
    assert str(error) == (
        "the query cannot start: a directory cannot be made: directory=/proc/x query=q. "
        "Hint: choose a directory that this user may write."
    )


@pytest.mark.parametrize(
    "said",
    [
        "org.apache.spark.SparkException: Python worker failed to connect back.",
        "java.io.IOException: Timed out while waiting for the Python worker to connect back after 10 s",
        "java.lang.IllegalStateException: Python daemon failed to launch worker with code -1",
        "[STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE] Streaming Runner initialization failed",
    ],
)
def test_a_worker_that_is_late_is_unavailable_and_says_what_to_do(said: str) -> None:
    text = f"[STREAM_FAILED] Query [id = 1] terminated with exception: {said}{_STACK}"
    error = failure_of(AnalysisException(text), "the query failed", query="q")
    assert type(error) is UnavailableError
    assert str(error).startswith(
        "the query failed: query=q cause=a Python worker did not start in time. Hint: the machine is too busy"
    )
    assert failure_of(Exception(text), "the query failed", hint="repair it").hint == "repair it"
    own = f"penstock.errors.CorruptDataError: a file is damaged: file=x.\n{_STACK}Caused by: {said}"
    assert kind_of(Exception(own)) is CorruptDataError


def test_json_that_a_user_cannot_parse_is_no_lost_driver() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert not is_without_answer(caught.value)
    assert kind_of(caught.value) is PenstockError


def test_an_error_that_only_wraps_another_gives_way_to_it() -> None:
    class WrappingError(Exception):
        """An error as PySpark converts it, with the error that caused it."""

        _cause: Exception | None = None

    error = wrapped = WrappingError("terminated with exception: Exception thrown in awaitResult: ")
    wrapped._cause = wrapped = WrappingError("Exception thrown in awaitResult: ")
    wrapped._cause = WrappingError("[NO_DISK] No space left. SQLSTATE: 1")
    assert str(failure_of(error, "it failed")) == "it failed: cause=[NO_DISK] No space left."
    wrapped._cause = WrappingError(
        "[STATE_STORE_COMMIT_VALIDATION_FAILED] State store commit validation failed."
    )
    told = failure_of(error, "it failed", query="q")
    assert isinstance(told, InvalidUsageError)
    assert str(told).startswith("it failed: not all rows of a micro-batch were read: query=q. Hint: ")


def test_an_error_of_a_users_function_names_its_line() -> None:
    text = (
        "[STREAM_FAILED] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] Return Message: "
        'Traceback (most recent call last):\n  File "/jobs/other.py", line 1, in f\nKeyError: 0\n\n'
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        f'  File "{pyspark.__file__}", line 163, in call\n    self.func(batch)\n'
        '  File "/jobs/meters.py", line 6, in keep\n    table["kwh"]\n    ~~~~~^^^^^^^\n'
        f'  File "{json.__file__}", line 4113, in loads\n  File "pandas/index.pyx", line 1, in get\n'
        "KeyError: 'kwh'\n SQLSTATE: 39000\n=== Streaming Query ===\n"
    )
    failure = failure_of(Exception(text), "the query failed")
    assert failure.context == {"cause": "KeyError: 'kwh'", "at": "meters.py:6"}


def test_a_python_error_of_several_lines_is_told_in_one() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/jobs/meters.py", line 6, in keep\n    write(rows)\n'
        "pyarrow.lib.ArrowInvalid: Schema at index 1 was different: \nkwh: double\nvs\nkwh: int64\n"
        " SQLSTATE: 39000\n=== Streaming Query ===\n"
    )
    says = "pyarrow.lib.ArrowInvalid: Schema at index 1 was different: kwh: double vs kwh: int64"
    assert root_cause(Exception(text)) == says
    assert len(root_cause(Exception(text.replace("vs", "vs " * 500)))) <= 400


def test_a_line_in_a_library_of_another_machine_is_not_the_users() -> None:
    frames = [
        ("/jobs/m.py", 6),
        ("/opt/spark/python/lib/pyspark.zip/pyspark/errors/captured.py", 288),
        ("/opt/conda/lib/python3.11/site-packages/pandas/core/series.py", 1040),
        ("/opt/python/lib/python3.12/json/decoder.py", 1),
        ("pandas/index.pyx", 1),
    ]
    assert users_line(frames) == {"at": "m.py:6"}
    assert users_line([*frames, ("/jobs/deps.zip/own.py", 3)]) == {"at": "own.py:3"}
    assert users_line(frames[1:]) == {}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint "p"\n'
            "DETAIL:  Key (ssn)=(078-05-1120) already exists.",
            'psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint "p"',
        ),
        (
            "pyspark.errors.AnalysisException: [UNRESOLVED_COLUMN] no column; line 1 pos 0;\n"
            "'Filter (ssn#1 = 078-05-1120)\n+- LogicalRDD [ssn#1], false",
            "pyspark.errors.AnalysisException: [UNRESOLVED_COLUMN] no column; line 1 pos 0;",
        ),
    ],
)
def test_further_lines_of_an_error_may_hold_data_and_are_not_told(said: str, told: str) -> None:
    text = f'Traceback (most recent call last):\n  File "/jobs/m.py", line 6, in keep\n{said}\n SQLSTATE: 1'
    assert root_cause(Exception(text)) == told


def test_an_error_whose_text_the_jvm_no_longer_tells_is_without_answer() -> None:
    class EndedError(Exception):
        def __str__(self) -> str:
            raise Py4JError("An error occurred while calling None.None")

    assert is_without_answer(EndedError())
    assert "the JVM of Spark's driver does not answer" in str(failure_of(EndedError(), "the query failed"))


@pytest.mark.parametrize("rest", ["", '  File "/jobs/m.py", line 6, in keep\n    write(', "\nmore"])
def test_a_traceback_that_is_cut_off_has_no_python_error(rest: str) -> None:
    text = f"terminated with exception: no disk\nTraceback (most recent call last):\n{rest}"
    assert root_cause(Exception(text)).startswith("no disk")
