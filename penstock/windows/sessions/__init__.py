"""Session windows: events of a group that follow each other closely."""
