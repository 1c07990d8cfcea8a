"""Machine code of generated kernels."""
