"""Run requests of TPC-C in a directory's database until somebody kills this process."""

from __future__ import annotations

import sys

import pyarrow as pa

from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.programs.oltp import OLTP
from penstock.procedures.programs.oltp.tpcc_data import TpccScale
from tests.transactions.procedures import interpreted

SIZE = 10
"""The requests of a call."""
SCALE = TpccScale(warehouses=2, districts=2, customers=12, items=40)
TPCC = OLTP["tpcc"]
MAX_CALLS = 200


def without_the_compiler() -> None:
    """Let Python run the kernel, since machine code takes a minute to make."""
    program = TPCC.procedure.program()
    program.__dict__["kernel"] = interpreted(program)


def load(db: OpenDatabase) -> None:
    """Load the tables that are empty, unless requests have run."""
    if db._state.transactions == 0:
        for name, rows in TPCC.tables(SCALE).items():
            if not db.table(name).num_rows:
                db.load(name, rows)


def call(db: OpenDatabase, number: int) -> None:
    """Run the requests of a call."""
    requests = TPCC.requests(SCALE, SIZE * MAX_CALLS, 5).slice(number * SIZE, SIZE)
    db.run(TPCC.procedure.name, pa.table(requests))


def main(place: str, partitions: int) -> None:
    """Run calls, and print the number of each one once it is durable."""
    without_the_compiler()
    with TPCC.database.open(place, partitions=partitions) as db:
        load(db)
        for number in range(db._state.transactions // SIZE, MAX_CALLS):
            call(db, number)
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
