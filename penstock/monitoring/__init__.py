"""Metrics for people and monitoring systems: tables, Prometheus and OpenTelemetry. Needs no Spark."""
