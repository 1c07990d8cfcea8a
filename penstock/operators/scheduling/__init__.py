"""Key schedulers: which key is served next, and how stale the keys are."""
