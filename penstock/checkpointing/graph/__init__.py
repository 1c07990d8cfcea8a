"""The directory of a running graph, and the facts in it."""
