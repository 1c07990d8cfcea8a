"""Windows in append mode: every window comes out."""
