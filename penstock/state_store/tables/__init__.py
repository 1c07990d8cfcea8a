"""Keyed tables: rows of one bucket in memory or in RocksDB."""
