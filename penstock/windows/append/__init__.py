"""Windows in append mode: every window is emitted."""
