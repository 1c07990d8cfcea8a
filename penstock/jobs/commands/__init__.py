"""The commands of ``penstock`` that inspect stored data, and that write to p-streams.

Importing this package loads nothing heavy: a command imports its dependencies when it runs.
"""
