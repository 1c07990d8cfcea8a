"""Pipelines on the local engine: checked, opened, run."""
