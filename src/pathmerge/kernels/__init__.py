"""The compiled room: numba kernels behind every draw. Nothing here is imported before the first draw."""
