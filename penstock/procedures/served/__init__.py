"""A database that other processes call over Arrow Flight."""
