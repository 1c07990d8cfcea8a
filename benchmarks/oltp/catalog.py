"""All OLTP benchmarks by name: the packaged ones, SEATS and AuctionMark."""

from __future__ import annotations

from benchmarks.oltp.auction_mark.data import AUCTION_MARK
from benchmarks.oltp.seats.data import SEATS
from penstock.procedures.programs.oltp import OLTP, OltpBenchmark

__all__ = ["BENCHMARKS"]

BENCHMARKS: dict[str, OltpBenchmark] = OLTP | {
    benchmark.name: benchmark for benchmark in (SEATS, AUCTION_MARK)
}
