"""The choice of cascades for columns: goals, costs, statistics, the search, and the chooser."""
