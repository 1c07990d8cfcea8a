"""``penstock ingest``: rows of files, pipes and sockets into a p-stream."""

from penstock.jobs.ingest.ingest import KINDS, ReadSizes, Report, Settings, Totals, ingest_sources

__all__ = ["KINDS", "ReadSizes", "Report", "Settings", "Totals", "ingest_sources"]
