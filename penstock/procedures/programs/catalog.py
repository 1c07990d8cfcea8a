"""The packaged programs by name."""

from __future__ import annotations

from penstock.procedures.programs.bank import BANK
from penstock.procedures.programs.grep_and_sum import GREP_AND_SUM
from penstock.procedures.programs.linear_road import LINEAR_ROAD
from penstock.procedures.programs.online_bidding import ONLINE_BIDDING
from penstock.procedures.programs.packaged import PackagedProgram
from penstock.procedures.programs.streaming_ledger import STREAMING_LEDGER
from penstock.procedures.programs.toll_processing import TOLL_PROCESSING

__all__ = ["PROGRAMS"]

PROGRAMS: dict[str, PackagedProgram] = {
    program.name: program
    for program in (GREP_AND_SUM, STREAMING_LEDGER, ONLINE_BIDDING, TOLL_PROCESSING, BANK, LINEAR_ROAD)
}
"""GS, SL, OB and TP (TStream §VI-A), a bank, and the tolls of Linear Road, by their names."""
