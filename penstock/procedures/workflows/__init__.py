"""Streams, windows and triggers, and workflows of procedures (S-Store §2 and §3.2)."""
