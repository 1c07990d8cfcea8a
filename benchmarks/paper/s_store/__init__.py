"""The figures of the S-Store paper, from our own runs (S-Store §4)."""
