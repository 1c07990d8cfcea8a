"""The configuration of pipelines: its schema, its files and the packaged examples."""
