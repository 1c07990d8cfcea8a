"""Fig. 3.10 of H-Store: Voter's throughput by the number of partitions."""
