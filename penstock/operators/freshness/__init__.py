"""Freshness contracts: promised staleness, and the controller that keeps the promise."""
