"""The commands of ``penstock`` that look at what it stores, and that write to p-streams.

Importing them loads nothing heavy: what a command needs is imported when it runs.
"""
