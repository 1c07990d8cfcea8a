"""Users' own operators on Spark."""
