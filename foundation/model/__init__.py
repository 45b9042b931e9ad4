"""The foundation model: one architecture a file."""
