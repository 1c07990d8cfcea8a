"""Analysis of a procedure's text: its operations, its route, and a description of both."""
