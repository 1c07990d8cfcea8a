"""``penstock replay``: runs recorded micro-batches of a pipeline again, without writing to its checkpoint."""
