"""The dashboard's page in headless Chromium, at the sizes of a desk and of a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.jobs.dashboard.dashboard import Dashboard
from tests.batches import batch, staleness
from tests.browser import CHROMIUM, Page, open_page
from tests.dashboards import write_checkpoint

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is missing"),
]
SECOND = 1_000_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def tile(name: str) -> str:
    return f"document.querySelector('.tile[data-name=\"{name}\"] b')?.textContent"


def fits(page: Page) -> bool:
    return bool(page.ask("document.documentElement.scrollWidth <= window.innerWidth"))


def test_the_page_shows_what_comes_and_asks_no_other_host(tmp_path: Path, page: Page) -> None:
    checkpoint = write_checkpoint(tmp_path)
    stale = staleness([(0, 4 * SECOND)], 8.0 * SECOND)
    with Dashboard("market", "0") as shown:
        page.requested.clear()
        page.errors.clear()
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
        assert "1000 rows/s in" in page.ask("document.querySelector('.node.works').textContent")
        assert "30 rows" in page.ask("document.querySelector('.node.p-stream').textContent")
        assert "results lags 10 rows" in page.ask("document.querySelector('.node.p-stream').textContent")
        page.wait("document.querySelectorAll('#storage table').length === 2")
        stored = page.ask("document.getElementById('storage').textContent")
        assert "numbers: p-stream" in stored
        assert "queue: state in 1 buckets" in stored
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
    import json

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
