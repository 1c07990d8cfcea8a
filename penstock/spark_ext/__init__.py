"""The only package, with `penstock.jobs`, that imports pyspark: DataFrame API and adapters.

It imports nothing here: Python workers load only the modules that their functions need.
"""
