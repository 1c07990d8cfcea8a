"""OLTP benchmarks in process, with a log, and in SQLite and PostgreSQL."""
