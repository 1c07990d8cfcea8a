"""Windows over update streams (UpStream §6)."""
