"""Versioned state of buckets: keys, working copies, deltas and snapshots, and the workers' cache."""
