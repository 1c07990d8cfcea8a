"""Run transactions early in an open database, whose partitions are threads (H-Store §6.3)."""
