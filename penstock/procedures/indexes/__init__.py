"""Ordered secondary indexes of tables: rows by columns other than their key."""
