"""Stateful operators on Spark, and their tasks in Python workers."""
