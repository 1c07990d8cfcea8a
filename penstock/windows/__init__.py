"""Windows over streams: panes, which are their state; assembly; and window queues (UpStream §6)."""
