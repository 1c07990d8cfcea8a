"""Operators of update streams on Arrow and NumPy, without Spark and without a clock."""
