"""The dashboard's page in headless Chromium, at the sizes of a desk and of a phone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.jobs.dashboard.dashboard import Dashboard
from tests.checkpoints.dashboards import write_checkpoint
from tests.samples.batches import batch, staleness
from tests.servers.browser import CHROMIUM, Page, open_page

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is missing"),
]
SECOND = 1_000_000
MARKET = """
source: {type: market, rows_per_second: 20_000, symbols: 3_000}
queue: {key: symbol, time: time, arrival: time, policy: linecutting, budget: 600, buckets: 2}
sink: {type: noop}
query:
  name: market
  checkpoint: checkpoint
  metrics: metrics.jsonl
  spark: {spark.master: "local[2]", spark.driver.memory: 1g}
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def wait_for(is_so: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for something that another process does."""
    while not is_so():
        assert process.poll() is None, "the run has ended"
        time.sleep(0.05)  # a file grows


def tile(name: str) -> str:
    return f"document.querySelector('.tile[data-name=\"{name}\"] b')?.textContent"


def fits(page: Page) -> bool:
    return bool(page.ask("document.documentElement.scrollWidth <= window.innerWidth"))


def test_the_page_shows_what_comes_and_asks_no_other_host(tmp_path: Path, page: Page) -> None:
    checkpoint = write_checkpoint(tmp_path)
    stale = staleness([(0, 4 * SECOND)], 8.0 * SECOND)
    with Dashboard("market", "0") as shown:
        page.resize(1280, 900)
        page.go(shown.url)
        page.wait("document.getElementById('status').textContent.includes('no micro-batch')")
        shown.show_checkpoint(str(checkpoint), None)
        rejections = {"no such account": 3, "<b>late</b>": 1}
        shown.history.add(
            batch(number, rows_in=1000, conflated=400, emitted=500, rows_out=500, waiting_keys=number,
                  application_staleness=stale, committed=9, rejected=4, rejections=rejections)
            for number in range(20)
        )  # fmt: skip
        page.wait(f"{tile('waiting keys')} === '19'")
        assert page.ask("document.title") == "market - Penstock"
        assert page.ask(tile("rows in a second")) == "1000"
        assert page.ask(tile("conflated")) == "40.0 %"
        assert page.ask(tile("staleness p95")) == "3.6 s"
        assert page.ask("document.querySelectorAll('.chart canvas').length") == 7
        assert page.ask("document.querySelector('#rejections table').textContent").startswith(
            "reasontransactionsno such account60<b>late</b>20"
        )
        shown.history.add([batch(20, waiting_keys=77)])
        page.wait(f"{tile('waiting keys')} === '77'")
        page.wait("document.querySelectorAll('.node').length === 5")
        assert "900 rows/s in, 450 rows/s out" in page.ask(
            "document.querySelector('.node.works').textContent"
        )
        assert "30 rows" in page.ask("document.querySelector('.node.p-stream').textContent")
        assert "results lags 10 rows" in page.ask("document.querySelector('.node.p-stream').textContent")
        page.wait("document.querySelectorAll('#storage table').length === 2")
        stored = page.ask("document.getElementById('storage').textContent")
        assert "numbers: p-stream" in stored
        assert "queue: state in 1 bucket," in stored
        assert fits(page)
        origin = urlsplit(shown.url).netloc
        assert {urlsplit(url).netloc for url in page.requested if not url.startswith("data:")} == {origin}
        page.resize(390, 844, phone=True, dark=True)
        page.wait("document.querySelector('.chart canvas').getBoundingClientRect().width < 390")
        assert fits(page), "on a phone"
        assert page.errors == []
    page.wait("document.getElementById('status').className === 'lost'")


def test_after_a_restart_the_page_starts_again_with_the_files_history(tmp_path: Path, page: Page) -> None:
    path = tmp_path / "metrics.jsonl"

    def write(numbers: range) -> None:
        with path.open("a") as file:
            file.writelines(
                json.dumps(batch(number, waiting_keys=number).entry()) + "\n" for number in numbers
            )

    write(range(5))
    page.resize(1280, 900)
    with Dashboard("market", "0", metrics=str(path)) as shown:
        port = urlsplit(shown.url).port
        page.go(shown.url)
        page.wait(f"{tile('waiting keys')} === '4'")
    write(range(5, 9))
    with Dashboard("market", str(port), metrics=str(path)):
        page.wait(f"{tile('waiting keys')} === '8'")
        series = "[...known.series.values()].map(one => one.map(each => each.entry.batch_id))"
        assert page.ask(series) == [list(range(9))], "each batch once"


def test_a_broken_contract_is_shown_until_it_is_kept_again(tmp_path: Path, page: Page) -> None:
    path = tmp_path / "metrics.jsonl"

    def write(number: int, **standings: float) -> None:
        classes = {
            name: {"promised_ms": 500.0, "staleness_ms": {"p95": p95}, "within": 0.9, "kept": p95 <= 500.0,
                   "needs": 1.0, "advice": "2.0 times the cores"}
            for name, p95 in standings.items()
        }  # fmt: skip
        with path.open("a") as file:
            file.write(json.dumps({**batch(number).entry(), "classes": classes}) + "\n")

    write(0, gold=100.0, other=1700.0)
    alerts = "document.getElementById('alerts').textContent"
    with Dashboard("market", "0", metrics=str(path)) as shown:
        page.go(shown.url)
        page.wait(f"{alerts} === 'q / queue: the contract for other is broken: p95 1.7 s, promised 500 ms'")
        standing = page.ask("document.querySelector('#promises table').textContent")
        assert "gold500 ms100 ms90.0 %kept" in standing
        assert "other500 ms1.7 s90.0 %broken2.0 times the cores" in standing
        legend = page.ask("document.querySelector('.chart .u-legend').textContent")
        for label in ("p50", "gold p95", "gold promised", "other p95", "other promised"):
            assert label in legend
        write(2, gold=100.0, other=400.0)
        page.wait(f"{alerts} === ''")


@pytest.mark.spark
def test_a_run_is_watched_while_it_runs(tmp_path: Path, page: Page) -> None:
    (tmp_path / "market.yaml").write_text(MARKET)
    with (tmp_path / "err").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "run", "market.yaml", "--dashboard", "0"],
            cwd=tmp_path, stderr=log,
        )  # fmt: skip
    try:
        wait_for(lambda: "dashboard: " in (tmp_path / "err").read_text(), process)
        (url,) = re.findall(r"dashboard: (\S+)", (tmp_path / "err").read_text())
        page.resize(1280, 900)
        page.go(url)
        page.wait(f"Number({tile('batch')}) >= 6")
        page.wait("document.querySelector('.node.works') && document.querySelectorAll('#storage td').length")
        assert "queue: state in 2 buckets" in page.ask("document.getElementById('storage').textContent")
        assert page.errors == []
        for name, width, height, phone in (
            ("dashboard", 1280, 1500, False),
            ("dashboard-phone", 390, 844, True),
        ):
            page.resize(width, height, phone=phone)
            page.wait(f"document.querySelector('.chart canvas').getBoundingClientRect().width < {width}")
            assert fits(page)
            file = tmp_path / f"{name}.png"
            page.draw(file)
            assert file.stat().st_size > 20_000
    finally:
        process.terminate()
        process.wait(60)
    page.wait("document.getElementById('status').className === 'lost'")


def test_two_operators_are_chosen_from(page: Page) -> None:
    with Dashboard("market", "0") as shown:
        shown.history.add([batch(1, waiting_keys=1), batch(1, operator="window", waiting_keys=2)])
        page.go(shown.url)
        page.wait(f"{tile('waiting keys')} === '1'")
        page.ask("document.getElementById('operator').value = 'q / window';"
                 "document.getElementById('operator').dispatchEvent(new Event('change'))")  # fmt: skip
        assert page.ask(tile("waiting keys")) == "2"


def test_with_a_token_the_printed_address_opens_the_page(page: Page) -> None:
    with Dashboard("market", "0", token="t0ken") as shown:
        shown.history.add([batch(1, waiting_keys=5)])
        page.go(shown.url.partition("?")[0])
        page.wait("document.body.innerText.includes('token is missing')")
        page.go(shown.url)
        page.wait(f"{tile('waiting keys')} === '5'")
        assert "t0ken" not in page.ask("location.href")
