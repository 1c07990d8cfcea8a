"""Windows in lazy and eager mode: only the newest window of each key waits."""
