"""The additional tables of a stream of transactions; no procedure sees them."""

from penstock.procedures.requests.run import REMEMBERED_REQUESTS
from penstock.procedures.workflows.batches import HELD_EVENTS

__all__ = ["HIDDEN_TABLES"]

HIDDEN_TABLES = (REMEMBERED_REQUESTS, HELD_EVENTS)
