"""The commands that inspect stored data."""
