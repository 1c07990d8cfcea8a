"""Persistent operator graphs as streaming queries of Spark."""
