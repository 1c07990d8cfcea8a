"""Pipelines on clusters: archives for workers, and checks of the places that machines share."""
