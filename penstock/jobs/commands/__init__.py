"""The commands of ``penstock`` that inspect stored data, and that write to p-streams.

Importing them loads nothing heavy: a command imports its dependencies when it runs.
"""
