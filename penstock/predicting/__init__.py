"""Train models that predict what transactions will do, by a trace of them (H-Store §5, Houdini)."""
