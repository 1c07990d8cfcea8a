"""The DataFrame API and Spark adapters. Only this package and `penstock.jobs` import pyspark.

This ``__init__`` imports nothing, so Python workers load only the modules that their functions need.
"""
