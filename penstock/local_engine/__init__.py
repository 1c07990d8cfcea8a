"""The local engine: runs graphs in one process, with the operators and the state of Spark's workers.

A query of a plan runs in micro-batches, as on Spark: plan rows, pack them by bucket, run the bucket tasks
(`penstock.spark_ext.worker.bucket_task`), write results, commit. Its checkpoint has the form of Spark's
(`penstock.local_engine.query_log`), so a pipeline can continue here or on Spark. No JVM is started.
"""
