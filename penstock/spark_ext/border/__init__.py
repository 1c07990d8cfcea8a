"""The border between JVM and Python: types, buckets, and rows in whole Arrow batches."""
