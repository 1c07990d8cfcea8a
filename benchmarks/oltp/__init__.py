"""OLTP benchmarks in process, with a log, and in SQLite, DuckDB and PostgreSQL."""
