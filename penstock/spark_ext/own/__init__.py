"""User-defined operators on Spark."""
