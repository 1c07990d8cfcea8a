"""Pipelines from YAML: built, explained, run."""
