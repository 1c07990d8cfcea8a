"""Run transactions in the partitions that a predictor names, and notice wrong predictions (H-Store §5)."""
