"""The local engine: run graphs in one process, with the same operators and state as Spark's workers.

A query of a plan runs in micro-batches, as on Spark. Each micro-batch plans its rows, packs them by bucket,
runs the bucket tasks (`penstock.spark_ext.worker.bucket_task`), writes the results, and commits. The
checkpoint has the form of Spark's checkpoints (`penstock.local_engine.query_log`), so a pipeline can continue
here or on Spark. The engine starts no JVM.
"""
