"""Compile the text of a procedure to a kernel."""
