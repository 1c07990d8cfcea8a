"""The commands that look inside what is stored."""
