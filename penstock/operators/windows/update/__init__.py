"""Windows in lazy and eager mode: of each key only the newest window waits."""
