"""``penstock ingest``: rows of files, pipes and sockets into a p-stream."""

from penstock.jobs.ingest.ingest import KINDS, Report, Settings, Totals, ingest_sources

__all__ = ["KINDS", "Report", "Settings", "Totals", "ingest_sources"]
