"""From the text of a procedure to a kernel."""
