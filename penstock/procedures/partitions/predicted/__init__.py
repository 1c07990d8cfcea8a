"""Run transactions in the partitions that a predictor names, and notice where it was wrong (H-Store §5)."""
