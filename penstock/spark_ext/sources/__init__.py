"""Data sources and sinks of Spark."""
