"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.jobs import session
from penstock.jobs.session import _quiet_accumulators, _stop
from penstock.jobs.signals import StopSignals
from penstock.spark_ext.graph.handle import DRIVER_ENDED

_PROGRAM = """
import signal
from penstock.jobs.signals import StopSignals
with {block} as signals:
    print("ready", flush=True)
    while signals.received is None:
        signal.pause()
    print("noted", flush=True)
    try:
        signal.pause()
    finally:
        print("cleaned up")
"""


def started(block: str) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(block=block)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


def test_a_second_signal_ends_the_process_at_once_and_quietly() -> None:
    with started("StopSignals()") as program:
        assert program.stdout is not None
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "noted\n"
        program.send_signal(signal.SIGINT)
        out, err = program.communicate()
    assert (program.returncode, out, err) == (130, "", "stopping; another signal ends the process at once\n")


def test_a_signal_that_another_thread_receives_ends_the_wait() -> None:
    program = """
import signal, threading
from penstock.jobs.signals import StopSignals
def interrupt():
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
with StopSignals() as signals:
    threading.Timer(0.5, interrupt).start()
    signals.wait()
    print(signals.received == signal.SIGINT)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_where_nobody_asks_the_first_signal_raises() -> None:
    with pytest.raises(KeyboardInterrupt), StopSignals(raises=True):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(SystemExit) as caught, StopSignals(raises=True):
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143


def test_nothing_is_logged_of_the_call_that_a_signal_interrupts(caplog: pytest.LogCaptureFixture) -> None:
    interrupted = "KeyboardInterrupt while sending command."
    with pytest.raises(KeyboardInterrupt), StopSignals(raises=True):
        logging.error(interrupted)  # not ours
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            logging.error(interrupted)
            logging.getLogger("py4j.clientserver").error("Exception occurred while shutting down connection")
            logging.error("something else")
    assert caplog.messages == [interrupted, "something else"]


def test_a_jvm_that_a_signal_ends_is_no_failure_of_a_graph(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("penstock.spark_ext.graph.handle")
    caplog.set_level(logging.INFO)
    with StopSignals() as signals:
        log.error("%s [graph=%s query=%s]", "before", "g", None)
        signal.raise_signal(signal.SIGTERM)
        log.error("%s [graph=%s query=%s]", "the graph cannot go on", "g", None, extra={DRIVER_ENDED: True})
        log.warning("%s [graph=%s]", "the driver has ended", "g", exc_info=False, extra={DRIVER_ENDED: True})
        log.error("%s [graph=%s query=%s]", "a query failed", "h", "q", extra={DRIVER_ENDED: False})
        log.warning("%s [graph=%s]", "another failure", "g", exc_info=ValueError())
        log.info("graph %s [graph=%s]", "failed", "g")
        assert signals.received == signal.SIGTERM
    assert [text.split(" [")[0] for text in caplog.messages] == [
        "before", "a query failed", "another failure", "graph failed",
    ]  # fmt: skip


def test_a_jvm_that_ends_leaves_no_trace_of_accumulators() -> None:
    told: list[object] = []
    listener = socket.create_server(("127.0.0.1", 0))
    address, port = listener.getsockname()
    parameters = SimpleNamespace(address=address, port=port)
    server = SimpleNamespace(handle_error=lambda *request: told.append(request), server_shutdown=False)
    context = SimpleNamespace(
        _accumulatorServer=server, _gateway=SimpleNamespace(gateway_parameters=parameters)
    )
    _quiet_accumulators(cast(SparkContext, context), closing_s=0.01)

    def report(error: Exception, when: str) -> None:
        try:
            raise error
        except (ValueError, EOFError):
            server.handle_error(type(error).__name__, when)

    report(EOFError(), "runs")
    server.server_shutdown = True
    report(EOFError(), "stops")
    server.server_shutdown = False
    listener.close()
    report(EOFError(), "has ended")
    report(ValueError(), "has ended")
    assert told == [("EOFError", "runs"), ("ValueError", "has ended")]


def test_a_pyspark_without_a_server_of_accumulators_is_left_alone() -> None:
    _quiet_accumulators(cast(SparkContext, SimpleNamespace()))


def test_a_signal_counts_for_the_blocks_around_it() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals(raises=True) as outer:
        with StopSignals() as inner:
            signal.raise_signal(signal.SIGINT)
            assert (inner.received, outer.received) == (signal.SIGINT, None)
        assert outer.received == signal.SIGINT, "the next one ends the process"
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_signals_stay_as_they_are() -> None:
    before = signal.getsignal(signal.SIGINT)
    within = []

    def work() -> None:
        with StopSignals():
            within.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert within == [before]


def test_a_signal_does_not_interrupt_who_waits_for_the_jvm() -> None:
    # PySpark's cleaning up would leave a JVM that never ends.
    waiting, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def launch_gateway() -> str:
        waiting.set()
        goes_on.wait(30)
        ended.set()
        return "gateway"

    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        waiting.wait(30)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), StopSignals(raises=True):
        session._run_in_thread(launch_gateway)
    assert not ended.is_set(), "the call has ended before the other thread has"
    goes_on.set()
    assert ended.wait(30)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("received", [None, signal.SIGINT])
def test_queries_are_stopped_before_their_session(received: int | None, fails: bool) -> None:
    stopped: list[str] = []

    def stop_query() -> None:
        stopped.append("query")
        if fails:
            raise ConnectionError("Spark has gone")

    active = [SimpleNamespace(stop=stop_query)]
    spark = SimpleNamespace(streams=SimpleNamespace(active=active), stop=lambda: stopped.append("session"))
    signals = StopSignals()
    signals.received = received
    with pytest.raises(ConnectionError) if fails and received is None else nullcontext():
        _stop(cast(SparkSession, spark), signals)
    assert stopped == ["query", "session"]


def test_ctrl_c_while_the_command_imports_its_modules_is_quiet(tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    module, _, function = project["project"]["scripts"]["penstock"].partition(":")
    (tmp_path / "typer.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import {function}\n{function}()"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
