"""Session windows: events of a group with less than a gap between consecutive events."""
