"""Pipelines on clusters: archives for workers, and checks of what the machines share."""
