"""What a procedure's text says before it runs: its operations, its route, and both in words."""
