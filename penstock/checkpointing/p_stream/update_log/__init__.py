"""Update logs: p-streams that keep the newest row of each key."""

from penstock.checkpointing.p_stream.update_log.spec import UpdateLog

__all__ = ["UpdateLog"]
