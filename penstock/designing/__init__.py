"""Design the partitions of a database from a trace of its transactions (H-Store §4, Horticulture)."""
