"""Versioned state of one bucket: keys, working copy, deltas and snapshots, and the workers' cache."""
