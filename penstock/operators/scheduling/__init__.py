"""Key schedulers, which order the waiting keys, and the accounting of staleness."""
