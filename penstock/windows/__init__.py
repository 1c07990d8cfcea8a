"""Windows over streams: panes as state, the assembly function, window queues (UpStream §6)."""
