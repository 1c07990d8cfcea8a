"""The experiments and figures of the UpStream paper that do not need its testbed."""
