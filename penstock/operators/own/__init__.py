"""Users' own operators: their definition, and their state."""
