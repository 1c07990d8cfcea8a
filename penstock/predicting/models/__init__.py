"""Predict what transactions do before they run, by Markov models of procedures (H-Store §5, Houdini)."""
