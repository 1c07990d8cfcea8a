"""Show metrics to people and monitoring systems, without Spark: tables, Prometheus, OpenTelemetry."""
