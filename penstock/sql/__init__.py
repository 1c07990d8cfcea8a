"""SQL expressions on Arrow tables."""
