"""What the command line and ``spark-submit`` run."""
