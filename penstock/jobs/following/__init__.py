"""Follow the queries of a run: report their batches, and stop them at a signal."""
