"""Traces of transactions: from requests, from a log, and from a run."""
