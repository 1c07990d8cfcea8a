"""Choosing how columns are coded: goals, costs, statistics, the search for a cascade, and the chooser."""
