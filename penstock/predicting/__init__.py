"""Train models that predict what transactions will do, from a trace (H-Store §5, Houdini)."""
