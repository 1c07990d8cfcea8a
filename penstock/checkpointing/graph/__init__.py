"""The directory of a running graph, and what it says of the graph."""
