"""Transactions over several buckets equal a serial run, whatever share of them needs several."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.procedures.partitions.bucket_forwarding import Forwarding
from tests.long_tests import long_but
from tests.property.procedures.partitions.test_forwarding import PROGRAM, batch_of, check_serial_order

CASES = [(share, buckets) for share in (0.01, 0.1, 0.5, 1.0) for buckets in (2, 3, 5)]
IDS = range(60)


def draw_moves(share: float, forwarding: Forwarding, draw: random.Random, count: int) -> list[dict[str, Any]]:
    """Draw events, of which exactly a share moves money between two buckets."""
    spends = [{"kind": "spend", "source": one, "target": None, "name": None, "amount": 1} for one in IDS]
    buckets = [set(found.tolist()) for found in forwarding.places(batch_of(spends))]
    far, rows = set(draw.sample(range(count), round(share * count))), []
    for number in range(count):
        source = draw.choice(IDS)
        home = next(bucket for bucket in buckets if source in bucket)
        target = draw.choice([one for one in IDS if (one in home) != (number in far)])
        kind = draw.choice(["move", "close"]) if number in far else draw.choice(["move", "spend", "close"])
        amount = draw.randint(-20, 60)
        row = {"kind": kind, "source": source, "target": target, "name": None, "amount": amount}
        rows.append(row if kind != "spend" else row | {"target": None})
    return rows


@pytest.mark.parametrize("order", ["any", "arrival"])
@pytest.mark.parametrize(("share", "buckets"), long_but(CASES, (0.1, 3)))
def test_each_share_equals_the_serial_order(share: float, buckets: int, order: str) -> None:
    draw = random.Random(f"{share} {buckets} {order}")
    forwarding = Forwarding.plan(PROGRAM, buckets, order)
    rows = draw_moves(share, forwarding, draw, 200)
    forwarded = check_serial_order(forwarding, rows, draw, [20, 60])
    assert forwarded == round(share * 200) if order == "any" else forwarded >= round(share * 200)
