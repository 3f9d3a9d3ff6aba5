"""Problems of exactly known difficulty: one frozen config per distribution, and what a draw returns."""
