"""Replicas of a database, which follow its log and can take over."""
