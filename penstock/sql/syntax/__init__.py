"""Spark SQL as text: tokens, keywords, built-in functions, the parser."""
