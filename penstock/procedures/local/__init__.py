"""Sets and calls of other procedures, which live within one transaction."""
