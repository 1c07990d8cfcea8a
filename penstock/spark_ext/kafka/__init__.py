"""Decode the records of Spark's Kafka connector."""
