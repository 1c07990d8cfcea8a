"""The join of two update streams."""
