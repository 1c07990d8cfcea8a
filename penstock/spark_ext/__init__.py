"""The DataFrame API and Spark adapters. Only this package and `penstock.jobs` import pyspark.

It imports nothing here: Python workers load only the modules that their functions need.
"""
