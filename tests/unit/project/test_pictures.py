"""The pictures of the documents: a terminal and the dashboard's page, drawn from a run on the local engine.

``PENSTOCK_FIGURES=1`` draws them into ``docs/figures``.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text
from typer.testing import CliRunner

from penstock._clock import SimulatedClock, now_us
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.cli import app
from penstock.conf.pipeline import load_document
from penstock.jobs.dashboard.dashboard import Dashboard
from penstock.jobs.following.batches import batch_parts, wrap_parts
from penstock.jobs.local.pipeline import Places, _output, open_pipeline
from penstock.jobs.local.run import _batch, _MetricsFile
from penstock.local_engine.query import LocalBatch
from tests.servers.browser import CHROMIUM, Page, open_page

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is missing"),
]
FIGURES = Path(__file__).parents[3] / "docs" / "figures"
SCHEMA = pa.schema(
    {"symbol": pa.string(), "time": pa.timestamp("us", "UTC"), "price": pa.float64(), "volume": pa.int64()}
)
PIPELINE = """\
engine: local
source: {type: pstream, path: trades}
queue:
  key: symbol
  time: time
  arrival: time
  policy: freshest
  buckets: 2
  freshness: {p95: {large: 3 s, other: 6 s}, by: CASE WHEN volume > 900 THEN 'large' END}
sink: {type: parquet, path: prices}
query: {name: quotes, checkpoint: checkpoint, metrics: metrics.jsonl, retain_versions: 100}
"""
START_US = now_us() - 40_000_000
SYMBOLS = 400
WIDTH = 114
MS_OF_A_ROW = 2.0
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px
}}
{styles}
</style>
<defs>
{lines}
</defs>
<rect fill="#0c0c0c" x="-9" y="-9" width="100%" height="100%" rx="8"/>
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</svg>
"""
"""A terminal without a title bar, whose fonts no other host serves."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def rows_of(second: int, rate: int) -> pa.Table:
    """Return a second's trades; the first symbols trade more."""
    ids = [(n * n * 7 + second * 31 + n) % SYMBOLS * (n % 3 + 1) // 3 for n in range(rate)]
    begin = START_US + second * 1_000_000
    return pa.table(
        {
            "symbol": [f"S{one:03}" for one in ids],
            "time": pa.array([begin + n * 1_000_000 // rate for n in range(rate)]).cast(
                SCHEMA.field("time").type
            ),
            "price": [20.0 + one % 50 for one in ids],
            "volume": [1000 if one < 20 else 100 for one in ids],
        },
        SCHEMA,
    )


class SlowSink:
    """A sink that takes some milliseconds of a simulated clock for each row."""

    def __init__(self, opened: Any, clock: SimulatedClock) -> None:
        self._opened, self._clock = opened, clock
        self.ms_of_a_row = MS_OF_A_ROW

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        taken = list(rows)
        self._opened.write(iter(taken), query, batch)
        self._clock.advance(round(1000 * self.ms_of_a_row * sum(some.num_rows for some in taken)))


class Market:
    """A run of the pipeline under a simulated clock."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.lines: list[str] = []
        (place / "quotes.yaml").write_text(PIPELINE)
        loaded, document = load_document(place / "quotes.yaml")
        self.clock = SimulatedClock(START_US)
        stream = PStream(place / "trades", SCHEMA)
        stream.subscribe("replays")
        sinks: list[SlowSink] = []

        def opened(schema: Any, checkpoint: str) -> SlowSink:
            sinks.append(SlowSink(_output(loaded, document, schema, checkpoint), self.clock))
            return sinks[-1]

        self._running = open_pipeline(loaded, document, Places(clock=self.clock, output=opened))
        (self.sink,) = sinks
        self._metrics = _MetricsFile(loaded)
        self._second = 0

    def go(self, seconds: int, rate: int) -> None:
        """Let seconds of trades come and be served."""
        for _ in range(seconds):
            with PStreamWriter(self.place / "trades", SCHEMA, threads=1) as writer:
                writer.append(rows_of(self._second, rate))
            self._second += 1
            due_us = START_US + self._second * 1_000_000
            self.clock.advance(max(due_us - self.clock(), 0))
            self._running.step(self._note)

    def _note(self, done: LocalBatch) -> None:
        self._metrics.write(done)
        self.lines.append(wrap_parts(batch_parts(_batch(done)), WIDTH))


def draw_terminal(file: Path, command: str, output: str) -> None:
    """Write what a command prints as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text(f"$ {command}", style="bold"))
    for line in output.strip("\n").splitlines():
        text = Text(line.rstrip())
        text.highlight_regex(r"(?<![\w.,])[0-9][0-9,.]*(?=\s|$)", "cyan")
        text.highlight_regex(r"(waiting|stale) +[1-9][0-9,.]*|[0-9][0-9,.]*\*", "yellow")
        console.print(text)
    svg = console.export_svg(theme=SVG_EXPORT_THEME, code_format=SVG, unique_id=file.stem)
    width, height = (float(size) + 18 for size in re.findall(r"0 0 ([0-9.]+) ([0-9.]+)", svg)[0])
    svg = re.sub(r'viewBox="[^"]*"', f'viewBox="-9 -9 {width:g} {height:g}"', svg, count=1)
    file.write_text(re.sub(r" +$", "", svg, flags=re.MULTILINE), encoding="utf-8")


def draw_page(page: Page, file: Path) -> None:
    """Write a screenshot with few colours."""
    page.draw(file, whole=False)
    with Image.open(file) as drawn:
        drawn.convert("RGB").quantize(32).save(file, optimize=True)


def test_a_terminal_and_the_page_show_a_promise_that_breaks(
    tmp_path: Path, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    place = FIGURES if os.environ.get("PENSTOCK_FIGURES") else tmp_path
    market = Market(tmp_path)
    monkeypatch.setattr("penstock.jobs.local.run.now_us", market.clock)
    market.go(20, 300)
    with Dashboard("quotes", "0", metrics=str(tmp_path / "metrics.jsonl")) as shown:
        shown.show_checkpoint(str(tmp_path / "checkpoint"), None)
        page.resize(1100, 1400)
        page.go(shown.url)
        alerts = "document.getElementById('alerts').textContent"
        page.wait("document.querySelector('#promises table').textContent.includes('kept')")
        page.wait("document.querySelectorAll('#storage table').length === 2")
        assert page.ask(alerts) == ""
        draw_page(page, place / "dashboard.png")
        # The sink gets ten times slower and the load greater, until no budget keeps the promises.
        market.sink.ms_of_a_row *= 10
        market.go(12, 900)
        page.resize(1100, 560)
        page.wait(f"{alerts}.includes('the contract for other is broken')")
        page.wait("Number(document.querySelector('.tile[data-name=batch] b').textContent) === 31")
        draw_page(page, place / "dashboard-broken.png")
        page.resize(390, 844, phone=True, dark=True)
        page.wait("document.querySelector('.chart canvas').getBoundingClientRect().width < 390")
        draw_page(page, place / "dashboard-phone.png")
        assert page.errors == []
    draw_terminal(place / "terminal-run.svg", "penstock run quotes.yaml", "\n".join(market.lines[16:24]))
    replay = ["replay", "checkpoint", "--pipeline", "quotes.yaml", "--from", "4", "--policy", "fifo"]
    plan = ["plan", "trades", "--key", "symbol", "--time", "time", "--cost", "4ms", "--freshness", "p95: 2 s",
            "--policy", "fifo,freshest", "--cores", "1,2"]  # fmt: skip
    for arguments in (replay, plan):
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        file = place / f"terminal-{arguments[0]}.svg"
        draw_terminal(file, shlex.join(["penstock", *arguments]), result.output)
    names = ["dashboard.png", "dashboard-broken.png", "dashboard-phone.png"]
    names += ["terminal-run.svg", "terminal-replay.svg", "terminal-plan.svg"]
    sizes = {name: (place / name).stat().st_size for name in names}
    assert min(sizes.values()) > 2_000, sizes
    assert sum(sizes.values()) < 200_000, sizes
    for name in names[3:]:
        assert "http" not in (place / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["classes"]["large"]
