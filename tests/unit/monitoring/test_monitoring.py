"""Metrics reach Prometheus, OpenTelemetry, pandas and notebooks as they were measured."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from penstock.cli import app
from penstock.errors import InvalidUsageError
from penstock.monitoring.measures import BOUNDS_S
from penstock.monitoring.opentelemetry import OpenTelemetryExporter, otlp_provider
from penstock.monitoring.prometheus import PrometheusExporter, PrometheusServer
from penstock.monitoring.table import MetricsList
from penstock.operators.freshness.standing import Standing
from penstock.units import parse_address
from tests.samples.batches import batch, staleness

DEPLOY = Path(__file__).parents[3] / "deploy" / "prometheus"
SECOND = 1_000_000
STRETCHES = [(0, 2 * SECOND), (SECOND // 2, 3 * SECOND), (20_000, 70_000), (9 * SECOND, 9 * SECOND + 400)]
KEY_TIME = 12.0 * SECOND
MOMENTS = np.concatenate([np.linspace(low, high, high - low, endpoint=False) for low, high in STRETCHES])
"""The staleness at each microsecond of the stretches."""


def scrape(exporter: PrometheusExporter) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples that Prometheus gets, by name and labels."""
    registry = CollectorRegistry()
    registry.register(exporter)
    return read(generate_latest(registry).decode())


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset({"query": "q", "operator": "queue", **labels}.items())


def test_the_time_below_a_bound_is_that_of_every_microsecond() -> None:
    measured = staleness(STRETCHES, KEY_TIME)
    fresh = KEY_TIME - len(MOMENTS)
    bounds = [1e6 * bound for bound in BOUNDS_S]
    expected = [fresh + np.count_nonzero(bound >= MOMENTS) for bound in bounds]
    # Within a bin of 2 % the time is spread evenly.
    assert measured.key_time_below_us(bounds) == pytest.approx(expected, abs=0.02 * len(MOMENTS))
    assert measured.key_time_below_us([1e13]) == pytest.approx([KEY_TIME])
    assert staleness([], 5.0).key_time_below_us([0.0, 1.0]) == [5.0, 5.0]


def test_samples_of_staleness_are_its_percentiles() -> None:
    measured = staleness(STRETCHES, KEY_TIME)
    everything = np.concatenate([np.zeros(int(KEY_TIME) - len(MOMENTS)), MOMENTS])
    shares = (np.arange(200) + 0.5) / 200
    assert measured.sample_us(200) == pytest.approx(np.quantile(everything, shares), rel=0.03, abs=1)
    assert max(staleness(STRETCHES[-1:], 400.0).sample_us(100)) == 9 * SECOND + 400, "a bin is wider"
    assert staleness([], 0.0).sample_us(3) == []


def test_prometheus_gets_sums_newest_values_and_histograms() -> None:
    exporter = PrometheusExporter()
    stale = staleness(STRETCHES, KEY_TIME)
    exporter.add([batch(1, rows_in=10, conflated=4, emitted=5, waiting_keys=7, duration_ms={"serve": 250.0})])
    exporter.add(
        [
            batch(2, rows_in=1, late=1, waiting_keys=3, application_staleness=stale, committed=2, rejected=1),
            batch(2, operator="other", rows_in=100),
        ]
    )
    exporter.add([batch(3, application_staleness=stale, state_bytes=5, state_bytes_written=9, loads=1)])
    found = scrape(exporter)
    assert found[of("penstock_rows_in_total")] == 11
    assert found[of("penstock_rows_in_total", operator="other")] == 100
    assert found[of("penstock_rows_total", fate="conflated")] == 4
    assert found[of("penstock_rows_total", fate="late")] == 1
    assert found[of("penstock_keys_waiting")] == 0
    assert found[of("penstock_batches_total")] == 3
    assert found[of("penstock_bad_records_total")] == 2
    assert found[of("penstock_batch_duration_seconds_total")] == 1.5
    assert found[of("penstock_batch_phase_seconds_total", phase="addBatch")] == pytest.approx(1.2)
    assert of("penstock_batch_phase_seconds_total", phase="triggerExecution") not in found
    assert found[of("penstock_operator_phase_seconds_total", phase="serve")] == 0.25
    assert found[of("penstock_batch_end_seconds")] == 1767225603.75
    assert found[of("penstock_state_memory_bytes")] == 5
    assert found[of("penstock_state_written_bytes_total")] == 9
    assert found[of("penstock_state_buckets_total", found="loads")] == 1
    assert found[of("penstock_transactions_total", outcome="rejected")] == 1
    assert of("penstock_transactions_total", operator="other", outcome="committed") not in found
    name = "penstock_staleness_application_seconds"
    assert found[of(f"{name}_count", **{"class": "all"})] == pytest.approx(2 * KEY_TIME / 1e6)
    assert found[of(f"{name}_sum", **{"class": "all"})] == pytest.approx(2 * stale.area / 1e12)
    buckets = [found[of(f"{name}_bucket", **{"class": "all", "le": str(bound)})] for bound in BOUNDS_S]
    assert buckets == sorted(buckets)
    two_seconds = KEY_TIME - np.count_nonzero(MOMENTS > 2.5 * SECOND)
    assert buckets[BOUNDS_S.index(2.5)] == pytest.approx(2 * two_seconds / 1e6, rel=0.02)


def test_promises_are_offered_by_class() -> None:
    stale = staleness([(0, SECOND)], 2.0 * SECOND)
    freshness = {
        "gold": Standing(SECOND // 2, 0.95, stale, late_us=0.01, time_us=1.0, needs=0.5, fixed_us=1.0),
        "other": Standing(2 * SECOND, 0.95, stale, late_us=0.2, time_us=1.0, needs=1.5, fixed_us=1.0),
    }
    exporter = PrometheusExporter()
    exporter.add([batch(2, freshness=freshness)])
    found = scrape(exporter)
    for name, promised, within, kept in (("gold", 0.5, 0.99, 1.0), ("other", 2.0, 0.8, 0.0)):
        assert found[of("penstock_freshness_promised_seconds", **{"class": name})] == promised
        assert found[of("penstock_freshness_within", **{"class": name})] == within
        assert found[of("penstock_freshness_kept", **{"class": name})] == kept
        assert found[of("penstock_staleness_application_seconds_count", **{"class": name})] == 2.0
    assert found[of("penstock_staleness_application_seconds_count", **{"class": "all"})] == 0.0


def test_prometheus_scrapes_the_server_and_a_taken_port_is_refused() -> None:
    server = PrometheusServer("127.0.0.1", 0)
    try:
        server.exporter.add([batch(1, rows_in=3)])
        with urllib.request.urlopen(server.url) as answer:
            assert read(answer.read().decode())[of("penstock_rows_in_total")] == 3
        port = int(server.url.split(":")[2].split("/")[0])
        with pytest.raises(InvalidUsageError, match=f"cannot listen for Prometheus.*127.0.0.1:{port}"):
            PrometheusServer("127.0.0.1", port)
    finally:
        server.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(server.url)


def test_opentelemetry_gets_the_same() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    exporter = OpenTelemetryExporter(provider)
    stale = staleness(STRETCHES, KEY_TIME)
    exporter.add([batch(1, rows_in=10, emitted=5, waiting_keys=7, application_staleness=stale)])
    exporter.add([batch(2, rows_in=1, waiting_keys=3, application_staleness=stale)])
    data: Any = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    provider.shutdown()

    def point(name: str, **labels: str) -> Any:
        own = {"query": "q", "operator": "queue", **labels}
        (one,) = [one for one in found[name].data.data_points if dict(one.attributes) == own]
        return one

    assert point("penstock.rows.in").value == 11
    assert point("penstock.rows", fate="emitted").value == 5
    assert point("penstock.keys.waiting").value == 3
    assert point("penstock.batch.duration").value == 1.0
    assert found["penstock.batch.duration"].unit == "s"
    histogram = point("penstock.staleness.application", **{"class": "all"})
    assert histogram.explicit_bounds == BOUNDS_S
    assert histogram.count == 100, "one for each 10 ms of two batches of half a second"
    below = sum(histogram.bucket_counts[: BOUNDS_S.index(2.5) + 1])
    assert below == pytest.approx(100 * (1 - np.count_nonzero(MOMENTS > 2.5 * SECOND) / KEY_TIME), abs=2)
    assert histogram.sum / 100 == pytest.approx(stale.average_ms / 1000, rel=0.03)


def test_otlp_reaches_the_collector_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/metrics"
            body = self.rfile.read(int(self.headers["content-length"]))
            bodies.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    provider: Any = otlp_provider()
    OpenTelemetryExporter(provider).add([batch(1, rows_in=10, application_staleness=staleness([], 1.0))])
    provider.shutdown()  # sends what is left
    server.shutdown()
    server.server_close()
    found = ExportMetricsServiceRequest.FromString(bodies[-1])
    (scope,) = found.resource_metrics[0].scope_metrics
    (rows,) = [metric for metric in scope.metrics if metric.name == "penstock.rows.in"]
    assert rows.sum.data_points[0].as_double == 10
    assert "penstock.staleness.application" in {metric.name for metric in scope.metrics}


def test_entries_become_a_data_frame_with_a_column_for_each_number() -> None:
    stale = staleness(STRETCHES, KEY_TIME)
    entries = MetricsList(
        batch(number, rows_in=number, application_staleness=stale, duration_ms={"serve": 1.5}).entry()
        for number in (1, 2)
    )
    frame = entries.to_pandas()
    assert frame["rows_in"].tolist() == [1, 2]
    assert frame["application_staleness_ms.p95"].tolist() == [round(stale.percentile_ms(0.95), 3)] * 2
    assert frame["duration_ms.serve"].tolist() == [1.5, 1.5]
    assert frame["spark_ms.addBatch"].tolist() == [400, 400]
    assert str(frame["timestamp"].dt.tz) == "UTC"
    assert (frame["timestamp"][1] - frame["timestamp"][0]).total_seconds() == 1
    assert MetricsList().to_pandas().empty


def test_a_notebook_shows_the_newest_entries_and_no_markup_of_names() -> None:
    entries = MetricsList(batch(n, operator="<b>", rows_in=10_000 + n, emitted=1).entry() for n in range(70))
    shown = entries._repr_html_()
    assert shown.count("<tr>") == 1 + 50
    assert "<td>10,069</td>" in shown
    assert "10,019" not in shown
    assert "20 older entries" in shown
    assert "<b>" not in shown
    assert "<td>&lt;b&gt;</td>" in shown
    assert "conflated" not in shown, "columns without numbers are left out"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (9464, ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        (":80", ("127.0.0.1", 80)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_an_address_is_a_port_or_a_host_and_a_port(given: str | int, address: tuple[str, int]) -> None:
    assert parse_address(given) == address


@pytest.mark.parametrize("given", ["host", "host:", "1:2:3", "host:65536", True, "-1", "host:1x"])
def test_anything_else_is_no_address(given: str | int) -> None:
    with pytest.raises(InvalidUsageError, match="is not an address"):
        parse_address(given)


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("query.prometheus=host", "'host' is not an address. Hint: write a port"),
        ("query.prometheus=[1]", "a list is not an address"),
        ("query.prometheus=70000", "70000 is not an address"),
        ("query.opentelemetry=3", "query.opentelemetry"),
    ],
)
def test_a_pipeline_with_a_wrong_address_is_refused(field: str, problem: str) -> None:
    result = CliRunner().invoke(app, ["check", "market", "--set", field])
    assert result.exit_code == 2
    assert problem in result.stderr


def test_a_pipeline_says_where_its_metrics_go() -> None:
    for given in ("9464", "'0.0.0.0:9464'"):
        assert (
            CliRunner().invoke(app, ["check", "market", "--set", f"query.prometheus={given}"]).exit_code == 0
        )


# ---------------------------------------------------------------------------------- rules, dashboard


def exported() -> dict[str, set[str]]:
    """Return the labels of each name that the exporter offers."""
    exporter = PrometheusExporter()
    standing = Standing(1, 0.9, staleness([], 1.0), late_us=0.0, time_us=1.0, needs=None, fixed_us=1.0)
    exporter.add(
        [
            batch(
                1, committed=1, rejections={"no": 1}, duration_ms={"serve": 1.0}, freshness={"gold": standing}
            ),
        ]
    )
    names: dict[str, set[str]] = {}
    for name, labels in scrape(exporter):
        names.setdefault(name, set()).update(label for label, _ in labels)
    return names


def expressions() -> list[str]:
    rules = [rule for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
             for rule in group["rules"]]  # fmt: skip
    board = json.loads((DEPLOY / "grafana.json").read_text())
    queries = [variable["query"]["query"] for variable in board["templating"]["list"][1:]]
    panels = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(rules) >= 6
    assert len(panels) >= 14
    return [*(rule["expr"] for rule in rules), *panels, *queries]


def test_rules_and_dashboard_ask_only_for_what_is_offered() -> None:
    names = exported()
    for expression in expressions():
        asked = set(re.findall(r"\bpenstock_\w+", expression))
        assert asked <= set(names), expression
        labels = set().union(*(names[name] for name in asked)) | {"le", "class", "query", "operator"}
        for used in re.findall(r"(?:by|without) \(([^)]*)\)|label_values\(\w+, (\w+)\)", expression):
            assert set(re.split(r",\s*", "".join(used))) <= labels, expression
        for matcher in re.findall(r"(\w+)=~?\"", expression):
            assert matcher in labels, expression


def test_the_dashboard_shows_every_measure() -> None:
    board = "\n".join(expressions())
    for name in exported():
        assert re.sub("_(bucket|count|sum)$", "", name) in board, name


def test_the_dashboards_panels_do_not_overlap_and_fill_the_width() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, panel["title"]
        cells |= own
    assert {x for x, _ in cells} == set(range(24))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool, of Debian's prometheus, is missing")
@pytest.mark.parametrize("command", ["check", "test"])
def test_promtool_accepts_the_rules_and_fires_them(command: str) -> None:
    file = {"check": "alerts.yaml", "test": "alerts.test.yaml"}[command]
    done = subprocess.run(
        ["promtool", command, "rules", file], cwd=DEPLOY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool, of Debian's prometheus, is missing")
def test_promtool_reads_what_is_offered_and_the_dashboards_queries(tmp_path: Path) -> None:
    exporter = PrometheusExporter()
    exporter.add([batch(1, committed=1, application_staleness=staleness(STRETCHES, KEY_TIME))])
    registry = CollectorRegistry()
    registry.register(exporter)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True, check=False
    )
    assert b"error" not in done.stderr, done.stderr
    assert done.returncode in (0, 3), "3 is for advice on names"
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(expressions())
        if not expression.startswith("label_values")
    ]
    groups = json.dumps({"groups": [{"name": "panels", "rules": rules}]})
    (tmp_path / "panels.yaml").write_text(groups)
    done = subprocess.run(
        ["promtool", "check", "rules", "panels.yaml"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
