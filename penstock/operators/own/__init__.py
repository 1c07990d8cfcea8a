"""User-defined operators: their definition, and their state."""
