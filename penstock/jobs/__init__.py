"""The jobs that the command line and ``spark-submit`` run."""
