"""The state of a query as batch DataFrames."""
