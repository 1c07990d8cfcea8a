"""What the operators of update streams mean, on Arrow and NumPy, without Spark and without a clock."""
